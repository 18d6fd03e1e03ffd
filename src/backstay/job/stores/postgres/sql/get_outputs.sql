-- Purpose: the values that a job left.
-- Parameters: space, job.
-- Returns: key, value.
SELECT key, value FROM backstay_job_output WHERE space = %(space)s AND job = %(job)s ORDER BY key
