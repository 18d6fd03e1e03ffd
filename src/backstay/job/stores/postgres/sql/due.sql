-- Purpose: what is due becomes pending. Left to whoever asks: jobs of runs.
-- Parameters: space, worker ('': nobody's step), incarnation, lane, limit, now.
-- Returns: id, type, and whether it is pending now.
WITH
-- include: _clock.sql
, ripe AS MATERIALIZED (
    SELECT ctid AS place, id, type, flags & 128 = 0 AS plain FROM backstay_job
    WHERE space = %(space)s AND state = 'scheduled' AND due <= (SELECT now FROM clock) AND (%(worker)s = '' OR
-- include: _my_turn.sql
    )
    ORDER BY due, id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
    UPDATE backstay_job SET state = 'pending' FROM ripe WHERE backstay_job.ctid = ripe.place AND ripe.plain
    RETURNING backstay_job.id, backstay_job.type, lane, queue, labels, bucket, key, flags
),
-- include: _lanes.sql
SELECT id, type, true FROM moved UNION ALL SELECT id, type, false FROM ripe WHERE NOT plain
