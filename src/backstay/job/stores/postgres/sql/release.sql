-- Purpose: jobs that have waited for others start, or wait until they are due.
-- Parameters: space, now; array ids.
-- Returns: id, type, state, attempt, flags, run.
WITH
-- include: _clock.sql
, found AS MATERIALIZED (
    SELECT job.tid FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = n.id OFFSET 0) job
), moved AS (
    UPDATE backstay_job SET state = CASE WHEN due > now THEN 'scheduled' ELSE 'pending' END
    FROM found, clock WHERE backstay_job.ctid = tid AND state = 'blocked'
    RETURNING id, type, state, lane, queue, labels, bucket, key, attempt, flags, run
),
-- include: _lanes.sql
SELECT id, type, state, attempt, flags, run FROM moved
