-- Purpose: compare what runs that have not finished count with their jobs. One statement sees one moment: it needs to
-- hold nobody up.
-- Parameters: space, after, limit.
-- Returns: id, whether it differs, whether it is being cancelled although jobs of it wait, why.
SELECT run.id, (run.scheduled, run.blocked, run.pending, run.running, run.completed, run.failed, run.cancelled,
    run.skipped, run.hard) IS DISTINCT FROM (job.scheduled, job.blocked, job.pending, job.running, job.completed,
    job.failed, job.cancelled, job.skipped, job.hard) OR job.scheduled + job.blocked + job.pending + job.running = 0,
    run.cancelling AND run.scheduled + run.blocked + run.pending > 0, run.reason
FROM (
    (SELECT * FROM backstay_run WHERE space = %(space)s AND status = 'queued' AND id > %(after)s
    ORDER BY status, id LIMIT %(limit)s)
    UNION ALL
    (SELECT * FROM backstay_run WHERE space = %(space)s AND status = 'running' AND id > %(after)s
    ORDER BY status, id LIMIT %(limit)s)
    ORDER BY id LIMIT %(limit)s) run
CROSS JOIN LATERAL (
-- include: _run_count.sql
) job
ORDER BY run.id
