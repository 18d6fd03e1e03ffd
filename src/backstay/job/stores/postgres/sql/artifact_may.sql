-- Purpose: whether somebody may leave a file with a job: whoever has its lease, which cannot end until the commit.
-- Parameters: space, job, fence (0: whoever asks may).
-- Returns: a row, if so.
SELECT 1 FROM (
    SELECT id FROM backstay_job WHERE space = %(space)s AND id = %(job)s AND fence = %(fence)s AND fence > 0
    FOR SHARE) lease
UNION ALL
SELECT 1 FROM backstay_job WHERE %(fence)s = 0 AND space = %(space)s AND id = %(job)s
UNION ALL
SELECT 1 FROM backstay_job_done WHERE %(fence)s = 0 AND space = %(space)s AND id = %(job)s
