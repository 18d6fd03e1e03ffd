-- Purpose: hold these rates, in one order for all who do.
-- Parameters: space; array buckets.
-- Returns: bucket, until when it is used up.
SELECT bucket, "at" FROM backstay_job_rate WHERE space = %(space)s AND bucket = ANY(%(buckets)b)
ORDER BY bucket FOR UPDATE
