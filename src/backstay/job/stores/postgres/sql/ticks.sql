-- Purpose: cron entries that are new are remembered as of now.
-- Parameters: space, now; array names.
WITH
-- include: _clock.sql
INSERT INTO backstay_job_tick (space, name, "at")
SELECT %(space)s, n.name, clock.now FROM unnest(%(names)b) AS n (name), clock ORDER BY n.name
ON CONFLICT (space, name) DO NOTHING
