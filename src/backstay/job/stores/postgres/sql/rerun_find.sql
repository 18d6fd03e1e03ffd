-- Purpose: the jobs of a run that failed or were cancelled.
-- Parameters: space, run.
-- Returns: ids, sorted.
SELECT id FROM backstay_job_done
WHERE space = %(space)s AND run = %(run)s AND run <> '' AND flags & 128 <> 0 AND state IN ('failed', 'cancelled')
ORDER BY id
