-- Purpose: when cron entries last ticked.
-- Parameters: space; array names.
-- Returns: name, at.
SELECT tick.name, tick."at" FROM unnest(%(names)b) AS n (name)
JOIN backstay_job_tick tick ON tick.space = %(space)s AND tick.name = n.name
