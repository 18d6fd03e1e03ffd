-- Purpose: try everything again that did not go well in a run.

-- name: failed
-- Params: space, run.
-- Returns: an Entry for each of its jobs that failed or was cancelled.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE run <> '' AND space = ? AND run = ? AND state IN (5, 6) ORDER BY id;

-- name: waits
-- Params: numbers as JSON.
-- Returns: num, chain, ended of everything that these jobs wait or waited for.
SELECT w.num, w.chain, w.ended FROM json_each(?) n CROSS JOIN backstay_job_wait w ON w.num = n.value;
