-- Purpose: find the jobs that a re-run of a run's failures restarts.

-- name: failed
-- Params: space, run.
-- Returns: a JobRecord for each of its jobs that failed or was cancelled.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE run <> '' AND space = ? AND run = ? AND state IN (5, 6) ORDER BY id;

-- name: waits
-- Params: numbers as JSON.
-- Returns: num, chain, ended of each blocker of these jobs.
SELECT w.num, w.chain, w.ended FROM json_each(?) n CROSS JOIN backstay_job_wait w ON w.num = n.value;
