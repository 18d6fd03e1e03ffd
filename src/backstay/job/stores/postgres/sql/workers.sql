-- Purpose: the workers that were heard of within a day.
-- Parameters: space, now.
-- Returns: doc, registered, beat.
SELECT doc, registered, beat FROM backstay_job_worker
WHERE space = %(space)s
    AND beat > coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) - 86400000000
ORDER BY id
