-- Purpose: finish attempts; free keys; release or skip dependents.

-- name: records
-- Params: space, ids as JSON.
-- Returns: a JobRecord for each stored job.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE space = ? AND id IN (SELECT value FROM json_each(?));

-- name: plain
-- Params: ids as JSON, space.
-- Returns: id, num, kind, state, fence, flags, keep of the stored jobs: enough for a finish without effects.
SELECT j.id, j.num, j.kind, j.state, j.fence, j.flags, j.keep
FROM json_each(?) f CROSS JOIN backstay_job j ON j.space = ? AND j.id = f.value;

-- name: consecutive
-- Params: space, id of the job with the smallest fence, number of further jobs, that fence.
-- Returns: num of the first job; comma-separated ids and kinds of the running jobs with consecutive numbers and fences
-- from it on whose end has no effects (flags & 263 = 0); whether their records are kept equally long.
SELECT a.num, group_concat(j.id), group_concat(j.kind), min(j.keep) = max(j.keep)
FROM backstay_job a CROSS JOIN backstay_job j NOT INDEXED ON j.num BETWEEN a.num AND a.num + ?3
WHERE a.space = ?1 AND a.id = ?2 AND j.space = ?1 AND j.state = 3 AND j.fence = j.num - a.num + ?4 AND j.flags & 263 = 0;

-- name: complete_range
-- Params: now, result, first number, last number, whether their records are deleted together. For jobs with consecutive
-- numbers and one result whose end has no effects. Deleted together: only the first gets an alarm.
UPDATE backstay_job SET state = 4, finished = ?1, alarm = iif(?5 AND num > ?3, 0, ?1 + keep), error = NULL, result = ?2
WHERE num BETWEEN ?3 AND ?4;

-- name: complete
-- Params: finished, time until which its record is kept, follower, result, num.
UPDATE backstay_job SET state = 4, finished = ?, alarm = ?, follower = ?, error = NULL, result = ?
WHERE num = ?;

-- name: complete_all
-- Params: now, result, numbers as JSON. For jobs with one result whose end has no effects.
UPDATE backstay_job SET state = 4, finished = ?1, alarm = ?1 + keep, error = NULL, result = ?2
WHERE num IN (SELECT value FROM json_each(?3));

-- name: end
-- Params: state, finished, time until which its record is kept, error, num.
UPDATE backstay_job SET state = ?, finished = ?, alarm = ?, error = ? WHERE num = ?;

-- name: retry
-- Params: state, alarm, rank, due, attempt, snoozes, error, num.
UPDATE backstay_job SET state = ?, alarm = ?, rank = ?, due = ?, attempt = ?, snoozes = ?, error = ? WHERE num = ?;

-- name: free
-- Params: space, key, job. The job no longer holds this unique key.
DELETE FROM backstay_job_unique WHERE space = ? AND key = ? AND job = ?;

-- name: parked_lane
-- Params: space, concurrency key, lane.
-- Returns: the next lane that has a parked job of that key.
SELECT min(lane) FROM backstay_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 8 AND lane > ?;

-- name: parked
-- Params: space, concurrency key, lane.
-- Returns: num, kind of the first parked job of that key and lane.
SELECT num, kind FROM backstay_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 8 AND lane = ?
ORDER BY rank, id LIMIT 1;

-- name: unpark
-- Params: num.
UPDATE backstay_job SET state = 2 WHERE num = ?;

-- name: waiting
-- Params: chains as JSON, space.
-- Returns: num, run, flags of each job that waits for one of these chains.
SELECT DISTINCT w.num, j.run, j.flags
FROM json_each(?) c CROSS JOIN backstay_job_wait w ON w.space = ? AND w.chain = c.value AND w.ended = 0
CROSS JOIN backstay_job j ON j.num = w.num ORDER BY w.num;

-- name: resolve_waits
-- Params: ended, chains as JSON, space. Stores the outcome in every open wait for these chains.
UPDATE backstay_job_wait SET ended = ?1, result = NULL
WHERE space = ?3 AND chain IN (SELECT value FROM json_each(?2)) AND ended = 0;

-- name: resolve_wait_with_result
-- Params: ended, result, space, chain. Stores the outcome and the result in every open wait for one chain.
UPDATE backstay_job_wait SET ended = ?, result = ? WHERE space = ? AND chain = ? AND ended = 0;

-- name: blocked
-- Params: numbers as JSON.
-- Returns: for each blocked one of these jobs: whether it has an open blocker, and a JobRecord.
SELECT EXISTS (SELECT 1 FROM backstay_job_wait w INDEXED BY backstay_job_wait_open
        WHERE w.num = j.num AND w.ended = 0),
    j.num, j.id, j.kind, j.lane, j.state, j.due, j.priority, j.attempt, j.retries, j.snoozes, j.flags, j.fence,
    j.worker, j.keep, j.keep_failed, j.chain, j.run, j.ckey, j.uniq, j.error
FROM json_each(?) n CROSS JOIN backstay_job j ON j.num = n.value WHERE j.state = 1;

-- name: has_open_blocker
-- Params: num.
-- Returns: a row if a blocker is open.
SELECT 1 FROM backstay_job_wait INDEXED BY backstay_job_wait_open WHERE num = ? AND ended = 0 LIMIT 1;

-- name: has_bad_blocker
-- Params: num.
-- Returns: a row if a blocker ended without success.
SELECT 1 FROM backstay_job_wait WHERE num = ? AND ended IN (2, 4) LIMIT 1;

-- name: has_failed_blocker
-- Params: num.
-- Returns: a row if a blocker failed, or was skipped because an upstream job failed.
SELECT 1 FROM backstay_job_wait INDEXED BY backstay_job_wait_failing WHERE num = ? AND ended = 4 LIMIT 1;

-- name: blame
-- Params: num. Sets BLAMED (4096): the job is skipped because an upstream job failed.
UPDATE backstay_job SET flags = flags | 4096 WHERE num = ?;

-- name: unblock
-- Params: now, numbers as JSON. Unblocks those of these jobs that have no open blocker.
-- Returns: num, id, kind, run, attempt, state of each unblocked job.
UPDATE backstay_job SET state = iif(due > ?1, 0, 2), alarm = iif(due > ?1, due, 0)
WHERE num IN (SELECT value FROM json_each(?2)) AND state = 1
    AND NOT EXISTS (SELECT 1 FROM backstay_job_wait w INDEXED BY backstay_job_wait_open
        WHERE w.num = backstay_job.num AND w.ended = 0)
RETURNING num, id, kind, run, attempt, state;
