-- Purpose: a job's log.
-- Parameters: space, job, after, limit.
-- Returns: seq, at, stream, data.
SELECT seq, "at", stream, data FROM backstay_job_log WHERE space = %(space)s AND job = %(job)s AND seq > %(after)s
ORDER BY seq LIMIT %(limit)s
