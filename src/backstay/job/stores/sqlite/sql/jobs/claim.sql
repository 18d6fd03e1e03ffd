-- Purpose: claim pending jobs.

-- name: lanes
-- Params: space (the namespace's number), names of queues as a JSON array.
-- Returns: for each lane with pending jobs: its number, then the queue, the labels and the rate (bucket, period in µs,
-- burst) of its jobs.
SELECT lane, queue, labels, bucket, period, burst FROM backstay_job_kind
WHERE space = ? AND queue IN (SELECT value FROM json_each(?)) AND pending > 0 GROUP BY queue, lane;

-- name: lanes_of_queue
-- Params: space (the namespace's number), name of a queue.
-- Returns: the columns of `lanes` for each lane of this queue that has pending jobs.
SELECT lane, queue, labels, bucket, period, burst FROM backstay_job_kind
WHERE space = ? AND queue = ? AND pending > 0 GROUP BY lane;

-- name: queues
-- Params: space (the namespace's number).
-- Returns: for each queue that is paused or has a rate limit: name, paused (1 or 0), period (µs between starts), burst
-- (most starts at once), tat (GCRA's theoretical arrival time, in µs).
SELECT name, paused, period, burst, tat FROM backstay_job_queue WHERE space = ?;

-- name: rate_tat
-- Params: space (the namespace's number), name of a rate bucket.
-- Returns: the tat of the bucket (GCRA's theoretical arrival time, in µs).
SELECT tat FROM backstay_job_rate WHERE space = ? AND bucket = ?;

-- name: first
-- Params: number of a lane, largest number of jobs to return.
-- Returns: the first pending jobs of the lane by rank, with every column that a claim needs.
SELECT rank, num, id, kind, attempt, args, meta, retries, snoozes, priority, chain, run, enqueued, due, flags, ckey,
    climit, uniq
FROM backstay_job INDEXED BY backstay_job_pending WHERE state = 2 AND lane = ? ORDER BY rank, id LIMIT ?;

-- name: more
-- Params: number of a lane, rank of the last job read, id of the last job read, largest number of jobs to return.
-- Returns: the columns of `first` for the pending jobs that follow the last job read.
SELECT rank, num, id, kind, attempt, args, meta, retries, snoozes, priority, chain, run, enqueued, due, flags, ckey,
    climit, uniq
FROM backstay_job INDEXED BY backstay_job_pending
WHERE state = 2 AND lane = ? AND (rank, id) > (?, ?) ORDER BY rank, id LIMIT ?;

-- name: running_with_key
-- Params: space (the namespace's number), concurrency key, largest number to count to.
-- Returns: the number of running jobs with that key. Counting stops at the largest number.
SELECT count(*) FROM
    (SELECT 1 FROM backstay_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 3 LIMIT ?);

-- name: park
-- Parks a pending job (state 8), because as many jobs of its concurrency key run as the key allows.
-- Params: num (row number) of the job.
UPDATE backstay_job SET state = 8 WHERE num = ?;

-- name: take
-- Claims jobs (state 3: running) and gives them consecutive fences, in the order of the JSON array.
-- Params: fence of the first job, end of the leases (µs), name of the worker, now (µs), numbers (`num`) of jobs as a
-- JSON array.
UPDATE backstay_job SET state = 3, fence = ?1 + f.key, alarm = ?2, worker = ?3, started = ?4, attempt = attempt + 1,
    progress = 0
FROM json_each(?5) f WHERE num = f.value;

-- name: take_range
-- Claims all jobs in a range of numbers (`num`) and gives them consecutive fences, in the order of their numbers.
-- Params: first fence minus first number (the statement adds this difference to each job's number, to get its fence),
-- end of the leases (µs), name of the worker, now (µs), first number, last number.
UPDATE backstay_job SET state = 3, fence = num + ?1, alarm = ?2, worker = ?3, started = ?4, attempt = attempt + 1,
    progress = 0
WHERE num BETWEEN ?5 AND ?6;

-- name: kinds
-- Params: numbers (`num`) of kinds as a JSON array.
-- Returns: num, type, queue, labels of each kind.
SELECT num, type, queue, labels FROM backstay_job_kind WHERE num IN (SELECT value FROM json_each(?));

-- name: kind
-- Params: num (row number) of a kind.
-- Returns: num, type, queue, labels of the kind.
SELECT num, type, queue, labels FROM backstay_job_kind WHERE num = ?;

-- name: body
-- Reads what is too large for a job's own row.
-- Params: num (row number) of the job.
-- Returns: args (encoded arguments), meta (encoded metadata) of the job.
SELECT args, meta FROM backstay_job_body WHERE num = ?;

-- name: upstream
-- Params: numbers (`num`) of jobs as a JSON array.
-- Returns: for each blocker of these jobs: num of the job, chain id of the blocker, outcome of the blocker (OUTCOME_*
-- in columns.py), result of the blocker (NULL: it has none, or only its own row contains it).
SELECT w.num, w.chain, w.outcome, w.result FROM json_each(?) n CROSS JOIN backstay_job_wait w ON w.num = n.value
ORDER BY w.num, w.position;

-- name: results
-- Params: space (the namespace's number), chain ids as a JSON array.
-- Returns: the id of each chain, and the result of its last job.
SELECT c.value, j.result FROM json_each(?2) c CROSS JOIN backstay_job j ON j.space = ?1
    AND j.id = coalesce((SELECT last FROM backstay_job_chain WHERE space = ?1 AND id = c.value), c.value);

-- name: charge_queue
-- Stores how far a queue's rate limit is used up.
-- Params: tat (GCRA's theoretical arrival time, in µs), space (the namespace's number), name of the queue.
UPDATE backstay_job_queue SET tat = ? WHERE space = ? AND name = ?;

-- name: charge_rate
-- Stores how far a rate bucket is used up.
-- Params: space (the namespace's number), name of the bucket, tat (GCRA's theoretical arrival time, in µs).
INSERT OR REPLACE INTO backstay_job_rate (space, bucket, tat) VALUES (?, ?, ?);
