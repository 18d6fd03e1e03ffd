-- Purpose: keep the jobs at the ends of these chains from ending until this transaction does. They may be claimed and
-- renewed. In one order for all who do.
-- Parameters: space; array chains.
-- Returns: the chains that have not ended, and the flags there.
WITH live AS MATERIALIZED (
    SELECT j.id FROM unnest(%(chains)b) AS n (chain)
    CROSS JOIN LATERAL (
        SELECT id FROM backstay_job WHERE space = %(space)s AND id = n.chain AND chain = id
        UNION ALL SELECT id FROM backstay_job WHERE space = %(space)s AND chain = n.chain AND chain <> id) j
    ORDER BY j.id
)
SELECT job.chain, job.flags FROM live CROSS JOIN LATERAL (
    SELECT chain, flags FROM backstay_job WHERE space = %(space)s AND id = live.id FOR KEY SHARE) job
