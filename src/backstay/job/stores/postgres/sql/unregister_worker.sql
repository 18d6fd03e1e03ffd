-- Purpose: a worker is gone.
-- Parameters: space, id.
DELETE FROM backstay_job_worker WHERE space = %(space)s AND id = %(id)s
