-- Purpose: hold runs, in one order for all who do, and after all jobs: two who end the last jobs of one meet here.
-- Parameters: space, now; array ids (sorted).
-- Returns: id, status, started, finished, deadline, timeout, keep, keep_until, events, whether it is being cancelled, why,
-- how many of its jobs are in which state, how many of them failed and are not soft; the time.
SELECT run.*, coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
    SELECT id, status, started, finished, deadline, timeout, keep, keep_until, events, cancelling, reason, scheduled,
        blocked, pending, running, completed, failed, cancelled, skipped, hard
    FROM backstay_run WHERE space = %(space)s AND id = n.id FOR NO KEY UPDATE) run
