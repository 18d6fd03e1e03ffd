-- Purpose: a scheduled job is due now.
-- Parameters: space, id, ageing, now.
-- Returns: id, type.
WITH
-- include: _clock.sql
, moved AS (
    UPDATE holdfast_job SET state = 'pending', due = now, rank = now - priority * %(ageing)s::bigint, attempt = 0 FROM clock
    WHERE space = %(space)s AND id = %(id)s AND state = 'scheduled'
    RETURNING id, type, lane, queue, labels, bucket, key
),
-- include: _lanes.sql
SELECT id, type FROM moved
