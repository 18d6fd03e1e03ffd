-- Purpose: chains have ended: those who wait for them remember how. Whoever calls it holds those (after_reach.sql), or has
-- made them. That one of the same run has completed is known without (see the table).
-- Parameters: space; arrays chains, completed, spoilt, blames (0 or 1), results.
-- Returns: the jobs that waited for some of them, and for which; of each, if it is blocked, its condition (else NULL),
-- whether a chain is left to wait for, whether one failed (asked of those alone that start then).
WITH told AS MATERIALIZED (
    SELECT a.tid, a.job, a.own AND e.completed > 0 AS known, e.*
    FROM unnest(%(chains)b, %(completed)b, %(spoilt)b, %(blames)b, %(results)b)
        AS e (chain, completed, spoilt, blame, result) CROSS JOIN LATERAL (
        SELECT ctid AS tid, job, own FROM backstay_job_after
        WHERE space = %(space)s AND chain BETWEEN e.chain AND e.chain AND NOT ended ORDER BY chain, job OFFSET 0) a
), gone AS (
    DELETE FROM backstay_job_after USING told WHERE backstay_job_after.ctid = told.tid AND told.known
), kept AS (
    UPDATE backstay_job_after a SET ended = true, completed = told.completed > 0, spoilt = told.spoilt > 0,
        blame = told.blame > 0, result = CASE WHEN told.completed > 0 AND NOT a.own THEN told.result END
    FROM told WHERE a.ctid = told.tid AND NOT told.known
)
SELECT heard.job, heard.chains, job.condition,
    -- One more than those that have just ended: what this statement writes, it does not see. In the order of the primary
    -- key, and of no other index: see release_heard.sql.
    EXISTS (SELECT FROM backstay_job_after
        WHERE space = %(space)s AND job = heard.job AND ended < true ORDER BY ended DESC, chain DESC OFFSET heard.n),
    job.condition = 'any_failure' AND (heard.blame OR EXISTS (
        SELECT FROM backstay_job_after WHERE space = %(space)s AND job = heard.job AND blame))
FROM (
    SELECT told.job, array_agg(told.chain) AS chains, count(*) AS n, bool_or(told.blame > 0) AS blame
    FROM told GROUP BY told.job) heard
LEFT JOIN LATERAL (
    SELECT condition FROM backstay_job
    WHERE space = %(space)s AND id = heard.job AND state = 'blocked' OFFSET 0) job ON true
