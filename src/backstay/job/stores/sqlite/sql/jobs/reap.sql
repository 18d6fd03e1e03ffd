-- Purpose: find jobs whose lease expired; make due jobs pending.

-- name: expired
-- Params: space (the namespace's number), now (µs), largest number of jobs to return.
-- Returns: the columns of a JobRecord (columns.py) for each running job whose lease expired.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE alarm > 0 AND space = ? AND state = 3 AND alarm <= ? ORDER BY alarm LIMIT ?;

-- name: due
-- Params: space (the namespace's number), now (µs), largest number of jobs to return.
-- Returns: num, kind, id, run, attempt of each scheduled job that is due.
SELECT num, kind, id, run, attempt FROM backstay_job WHERE alarm > 0 AND space = ? AND state = 0 AND alarm <= ?
ORDER BY alarm LIMIT ?;

-- name: make_pending
-- Makes a scheduled job pending.
-- Params: num of the job.
UPDATE backstay_job SET state = 2, alarm = 0 WHERE num = ?;
