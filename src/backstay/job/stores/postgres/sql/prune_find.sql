-- Purpose: runs past their time.
-- Parameters: space, now, limit.
-- Returns: id, how many jobs it has.
WITH
-- include: _clock.sql
SELECT id, completed + failed + cancelled + skipped FROM backstay_run
WHERE keep_until <= (SELECT now FROM clock) AND space || '' = %(space)s
ORDER BY keep_until LIMIT %(limit)s
