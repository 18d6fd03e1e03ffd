-- Purpose: find the jobs to cancel with a run.

-- name: open_jobs
-- Params: space (the namespace's number), id of the run.
-- Returns: the columns of a JobRecord (columns.py) for each job of the run that has not ended.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE run <> '' AND space = ? AND run = ? AND state IN (0, 1, 2, 3, 8) ORDER BY id;
