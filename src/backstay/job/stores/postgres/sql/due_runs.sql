-- Purpose: jobs of runs that are due become pending: those that due.sql left alone, which come first now.
-- Parameters: space, limit, now.
-- Returns: as release.sql.
WITH
-- include: _clock.sql
, ripe AS MATERIALIZED (
    SELECT ctid AS place FROM backstay_job
    WHERE space = %(space)s AND state = 'scheduled' AND due <= (SELECT now FROM clock) AND flags & 128 <> 0
    ORDER BY due, id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
    UPDATE backstay_job SET state = 'pending' FROM ripe WHERE backstay_job.ctid = ripe.place
    RETURNING id, type, state, lane, queue, labels, bucket, key, attempt, flags, run
),
-- include: _lanes.sql
SELECT id, type, state, attempt, flags, run FROM moved
