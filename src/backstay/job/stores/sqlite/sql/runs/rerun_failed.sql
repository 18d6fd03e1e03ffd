-- Purpose: find the jobs that `rerun_failed` restarts.

-- name: failed
-- Params: space (the namespace's number), id of the run.
-- Returns: the columns of a JobRecord (columns.py) for each job of the run that failed or was cancelled.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE run <> '' AND space = ? AND run = ? AND state IN (5, 6) ORDER BY id;

-- name: waits
-- Params: row numbers of jobs as a JSON array.
-- Returns: for each chain that one of these jobs waits for: num of the waiting job, chain's id, outcome (OUTCOME_* in
-- columns.py).
SELECT w.num, w.chain, w.outcome FROM json_each(?) n CROSS JOIN backstay_job_wait w ON w.num = n.value;
