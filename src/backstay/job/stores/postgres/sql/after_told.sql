-- Purpose: jobs hear of chains that ended elsewhere.
-- Parameters: space; arrays jobs, chains, completed (0 or 1), results.
-- Returns: the jobs that waited for one of them, and which.
WITH told AS MATERIALIZED (
    SELECT a.tid, e.completed, e.result
    FROM unnest(%(jobs)b, %(chains)b, %(completed)b, %(results)b) AS e (job, chain, completed, result)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job_after
        WHERE space = %(space)s AND job = e.job AND chain = e.chain AND NOT ended OFFSET 0) a
)
UPDATE backstay_job_after a
SET ended = true, completed = told.completed > 0, spoilt = told.completed = 0, blame = told.completed = 0,
    result = CASE WHEN told.completed > 0 THEN told.result END
FROM told WHERE a.ctid = told.tid AND NOT a.ended
RETURNING a.job, a.chain
