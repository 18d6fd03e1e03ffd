-- Purpose: mark the jobs at the ends of these chains: somebody waits for them. After after_grip.sql, which holds them.
-- Parameters: space, flag; array chains.
-- Returns: the chains that have not ended.
WITH live AS MATERIALIZED (
    SELECT j.id FROM unnest(%(chains)b) AS n (chain)
    CROSS JOIN LATERAL (
        SELECT id FROM backstay_job WHERE space = %(space)s AND id = n.chain AND chain = id
        UNION ALL SELECT id FROM backstay_job WHERE space = %(space)s AND chain = n.chain AND chain <> id) j
    ORDER BY j.id
), held AS MATERIALIZED (
    SELECT job.tid FROM live CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = live.id FOR NO KEY UPDATE) job
), marked AS (
    UPDATE backstay_job SET flags = flags | %(flag)s FROM held WHERE backstay_job.ctid = held.tid RETURNING chain
)
SELECT chain FROM marked
