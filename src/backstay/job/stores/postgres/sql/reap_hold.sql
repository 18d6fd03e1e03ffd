-- Purpose: hold jobs whose lease ran out, to end them or put them back one by one.
-- Parameters: space, limit, now.
-- Returns: id, attempt, retries, snoozes, why its cancellation is wanted (NULL: it is not), flags, run, worker, the time.
WITH
-- include: _clock.sql
SELECT id, attempt, retries, snoozes, cancel, flags, run, worker, (SELECT now FROM clock) FROM backstay_job
WHERE space = %(space)s AND state = 'running' AND until <= (SELECT now FROM clock)
ORDER BY until, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
