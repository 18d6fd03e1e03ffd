-- Purpose: runs that have not ended in time.
-- Parameters: space, now, limit.
-- Returns: ids.
WITH
-- include: _clock.sql
SELECT id FROM backstay_run
WHERE space = %(space)s AND deadline > 0 AND finished = 0 AND NOT cancelling AND deadline <= (SELECT now FROM clock)
ORDER BY deadline LIMIT %(limit)s
