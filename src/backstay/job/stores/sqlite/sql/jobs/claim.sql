-- Purpose: claim pending jobs.

-- name: lanes
-- Params: space, queues as JSON.
-- Returns: lane, queue, labels, bucket, period, burst of lanes with pending jobs.
SELECT lane, queue, labels, bucket, period, burst FROM backstay_job_kind
WHERE space = ? AND queue IN (SELECT value FROM json_each(?)) AND pending > 0 GROUP BY queue, lane;

-- name: lanes_of
-- Params: space, queue.
-- Returns: as `lanes`, for one queue.
SELECT lane, queue, labels, bucket, period, burst FROM backstay_job_kind
WHERE space = ? AND queue = ? AND pending > 0 GROUP BY lane;

-- name: queues
-- Params: space.
-- Returns: name, paused, period, burst, tat of queues that are paused or limited.
SELECT name, paused, period, burst, tat FROM backstay_job_queue WHERE space = ?;

-- name: tat
-- Params: space, bucket.
-- Returns: tat.
SELECT tat FROM backstay_job_rate WHERE space = ? AND bucket = ?;

-- name: first
-- Params: lane, limit.
-- Returns: the first jobs of a lane, with every column that a claim needs.
SELECT rank, num, id, kind, attempt, args, meta, retries, snoozes, priority, chain, run, enqueued, due, flags, ckey,
    climit, uniq
FROM backstay_job INDEXED BY backstay_job_pending WHERE state = 2 AND lane = ? ORDER BY rank, id LIMIT ?;

-- name: more
-- Params: lane, rank, id, limit.
-- Returns: as `first`, for the jobs after this rank and id.
SELECT rank, num, id, kind, attempt, args, meta, retries, snoozes, priority, chain, run, enqueued, due, flags, ckey,
    climit, uniq
FROM backstay_job INDEXED BY backstay_job_pending
WHERE state = 2 AND lane = ? AND (rank, id) > (?, ?) ORDER BY rank, id LIMIT ?;

-- name: running_with_key
-- Params: space, concurrency key, limit.
-- Returns: the number of running jobs with that key, counted up to the limit.
SELECT count(*) FROM
    (SELECT 1 FROM backstay_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 3 LIMIT ?);

-- name: park
-- Params: num.
UPDATE backstay_job SET state = 8 WHERE num = ?;

-- name: take
-- Params: first fence, until, worker, now, numbers as JSON. Each job gets the next fence.
UPDATE backstay_job SET state = 3, fence = ?1 + f.key, alarm = ?2, worker = ?3, started = ?4, attempt = attempt + 1,
    progress = 0
FROM json_each(?5) f WHERE num = f.value;

-- name: take_range
-- Params: fence minus number, until, worker, now, first number, last number. For jobs with consecutive numbers.
UPDATE backstay_job SET state = 3, fence = num + ?1, alarm = ?2, worker = ?3, started = ?4, attempt = attempt + 1,
    progress = 0
WHERE num BETWEEN ?5 AND ?6;

-- name: kinds
-- Params: kinds as JSON.
-- Returns: num, type, queue, labels.
SELECT num, type, queue, labels FROM backstay_job_kind WHERE num IN (SELECT value FROM json_each(?));

-- name: kind
-- Params: num.
-- Returns: as `kinds`, for one kind.
SELECT num, type, queue, labels FROM backstay_job_kind WHERE num = ?;

-- name: body
-- Params: num.
-- Returns: args, meta that are too large for the job's own row.
SELECT args, meta FROM backstay_job_body WHERE num = ?;

-- name: upstream
-- Params: numbers as JSON.
-- Returns: num, chain, ended, result (NULL unless it completed) of each job's blockers.
SELECT w.num, w.chain, w.ended, w.result FROM json_each(?) n CROSS JOIN backstay_job_wait w ON w.num = n.value
ORDER BY w.num, w.place;

-- name: results
-- Params: space, chains as JSON.
-- Returns: chain, result of its last job.
SELECT c.value, j.result FROM json_each(?2) c CROSS JOIN backstay_job j ON j.space = ?1
    AND j.id = coalesce((SELECT last FROM backstay_job_chain WHERE space = ?1 AND id = c.value), c.value);

-- name: charge_queue
-- Params: tat, space, name.
UPDATE backstay_job_queue SET tat = ? WHERE space = ? AND name = ?;

-- name: charge_rate
-- Params: space, bucket, tat.
INSERT OR REPLACE INTO backstay_job_rate (space, bucket, tat) VALUES (?, ?, ?);
