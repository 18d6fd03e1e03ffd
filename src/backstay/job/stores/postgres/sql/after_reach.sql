-- Purpose: hold all jobs that the end of these chains may start or skip, also through others that it skips; in one order
-- for all who do. Two blockers that end at the same moment meet here: the second waits, and sees in its next statement
-- what the first has left.
-- Parameters: space; arrays chains, bad (1: it did not succeed).
WITH RECURSIVE reached (job, bad, doubts) AS (
    SELECT a.job, c.bad > 0, a.doubts FROM unnest(%(chains)b, %(bad)b) AS c (chain, bad) CROSS JOIN LATERAL (
        SELECT job, doubts FROM backstay_job_after
        WHERE space = %(space)s AND chain BETWEEN c.chain AND c.chain AND NOT ended ORDER BY chain, job OFFSET 0) a
    UNION
    SELECT a.job, true, a.doubts FROM reached CROSS JOIN LATERAL (
        SELECT chain FROM backstay_job
        WHERE space = %(space)s AND id = reached.job AND fence = 0
            AND (condition = 'any_failure' OR (reached.bad AND condition = 'all_success')) OFFSET 0) skipped
    CROSS JOIN LATERAL (
        SELECT job, doubts FROM backstay_job_after
        WHERE space = %(space)s AND chain BETWEEN skipped.chain AND skipped.chain AND NOT ended
        ORDER BY chain, job OFFSET 0) a
    WHERE reached.bad OR reached.doubts
), waiting AS MATERIALIZED (
    SELECT DISTINCT job FROM reached ORDER BY job
)
SELECT count(*) FROM waiting CROSS JOIN LATERAL (
    SELECT id FROM backstay_job WHERE space = %(space)s AND id = waiting.job FOR NO KEY UPDATE) job
