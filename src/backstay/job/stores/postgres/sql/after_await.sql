-- Purpose: mark the jobs at the ends of these chains: somebody may wait for them. After after_grip.sql.
-- Parameters: space, flag; array chains.
WITH
-- include: _chain_ends.sql
, held AS MATERIALIZED (
    SELECT job.tid FROM live CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = live.id FOR NO KEY UPDATE) job
)
UPDATE backstay_job SET flags = flags | %(flag)s FROM held WHERE backstay_job.ctid = held.tid
