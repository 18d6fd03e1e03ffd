-- Purpose: chains have ended: those who wait for them remember how.
-- Parameters: space; arrays chains, completed (0 or 1), results.
-- Returns: the jobs that waited for one of them.
WITH told AS MATERIALIZED (
    SELECT a.tid, e.completed, e.result
    FROM unnest(%(chains)b, %(completed)b, %(results)b) AS e (chain, completed, result) CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM holdfast_job_after WHERE space = %(space)s AND chain = e.chain AND NOT ended OFFSET 0) a
)
UPDATE holdfast_job_after a
SET ended = true, completed = told.completed > 0, result = CASE WHEN told.completed > 0 THEN told.result END
FROM told WHERE a.ctid = told.tid AND NOT a.ended
RETURNING a.job
