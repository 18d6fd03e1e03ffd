-- Purpose: a job, and whether its run is being cancelled: then nobody brings it back.
-- Parameters: space, id.
-- Returns: state, chain, whether it is left as it is.
SELECT job.state, job.chain, coalesce(run.cancelling AND run.finished = 0, false) AND job.flags & 128 <> 0
FROM (
    SELECT state, chain, run, flags FROM backstay_job WHERE space = %(space)s AND id = %(id)s
    UNION ALL SELECT state, chain, run, flags FROM backstay_job_done WHERE space = %(space)s AND id = %(id)s) job
LEFT JOIN LATERAL (
    SELECT cancelling, finished FROM backstay_run WHERE space = %(space)s AND id = job.run OFFSET 0) run ON true
