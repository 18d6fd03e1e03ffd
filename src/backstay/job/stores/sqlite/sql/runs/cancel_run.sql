-- Purpose: find the jobs to cancel with a run.

-- name: open
-- Params: space, run.
-- Returns: a JobRecord for each of its jobs that has not ended.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE run <> '' AND space = ? AND run = ? AND state IN (0, 1, 2, 3, 8) ORDER BY id;
