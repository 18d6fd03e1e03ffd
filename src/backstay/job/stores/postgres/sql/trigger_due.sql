-- Purpose: a scheduled job is due now, with all its attempts: blocked, until whoever calls this releases it.
-- Parameters: space, id, ageing, now.
-- Returns: id, flags, run.
WITH
-- include: _clock.sql
UPDATE backstay_job SET state = 'blocked', due = now, rank = now - priority * %(ageing)s::bigint, attempt = 0 FROM clock
WHERE space = %(space)s AND id = %(id)s AND state = 'scheduled'
RETURNING id, flags, run
