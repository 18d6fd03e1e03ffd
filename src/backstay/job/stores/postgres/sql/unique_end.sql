-- Purpose: the unique keys of jobs that ended are free again.
-- Parameters: space; arrays keys, jobs.
WITH found AS MATERIALIZED (
    SELECT u.tid, n.job FROM unnest(%(keys)b, %(jobs)b) AS n (key, job) CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job_unique WHERE space = %(space)s AND key = n.key FOR UPDATE) u
)
DELETE FROM backstay_job_unique u USING found WHERE u.ctid = found.tid AND u.job = found.job
