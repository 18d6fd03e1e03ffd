-- Purpose: what is due becomes pending.
-- Parameters: space, worker ('': nobody's step), incarnation, lane, limit, now.
-- Returns: id and type of each.
WITH
-- include: _clock.sql
, ripe AS MATERIALIZED (
    SELECT ctid AS place FROM holdfast_job
    WHERE space = %(space)s AND state = 'scheduled' AND due <= (SELECT now FROM clock) AND (%(worker)s = '' OR
-- include: _my_turn.sql
    )
    ORDER BY due, id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
    UPDATE holdfast_job SET state = 'pending' FROM ripe WHERE holdfast_job.ctid = ripe.place
    RETURNING id, type, lane, queue, labels, bucket, key
),
-- include: _lanes.sql
SELECT id, type FROM moved
