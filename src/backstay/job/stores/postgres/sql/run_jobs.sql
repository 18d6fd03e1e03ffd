-- Purpose: hold the jobs of runs that have not ended, in one order for all who do.
-- Parameters: space; array runs.
-- Returns: id, state, attempt, run, the time.
SELECT job.id, job.state, job.attempt, job.run, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM (
    SELECT found.id FROM unnest(%(runs)b) AS n (run) CROSS JOIN LATERAL (
        SELECT id FROM backstay_job WHERE space = %(space)s AND run = n.run AND run <> '' AND flags & 128 <> 0 OFFSET 0
        ) found
    ORDER BY found.id) live
CROSS JOIN LATERAL (
    SELECT id, state, attempt, run FROM backstay_job WHERE space = %(space)s AND id = live.id FOR UPDATE) job
