-- Purpose: all jobs that the end of these chains may start or skip, also through others that it skips. A look: whoever
-- acts on it holds them first.
-- Parameters: space; arrays chains (all), bad (those that did not complete).
-- Returns: ids.
WITH RECURSIVE skipped (chain) AS (
    SELECT chain COLLATE "C" FROM unnest(%(bad)b) AS b (chain)
    UNION
    SELECT job.chain FROM skipped
    CROSS JOIN LATERAL (
        SELECT job FROM holdfast_job_after WHERE space = %(space)s AND chain = skipped.chain AND NOT ended OFFSET 0) a
    CROSS JOIN LATERAL (
        SELECT chain FROM holdfast_job
        WHERE space = %(space)s AND id = a.job AND fence = 0 AND condition = 'all_success' OFFSET 0) job
)
SELECT a.job FROM (SELECT chain FROM skipped UNION SELECT chain FROM unnest(%(chains)b) AS c (chain)) ended
CROSS JOIN LATERAL (
    SELECT job FROM holdfast_job_after WHERE space = %(space)s AND chain = ended.chain AND NOT ended OFFSET 0) a
