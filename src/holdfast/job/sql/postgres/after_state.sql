-- Purpose: how far jobs are that wait for others.
-- Parameters: space; array ids.
-- Returns: id, condition, how many chains have not ended, how many ended without completing.
SELECT job.id, job.condition, count(*) FILTER (WHERE NOT a.ended), count(*) FILTER (WHERE a.ended AND NOT a.completed)
FROM unnest(%(ids)b) AS n (id)
CROSS JOIN LATERAL (
    SELECT id, condition, state FROM holdfast_job WHERE space = %(space)s AND id = n.id OFFSET 0) job
CROSS JOIN LATERAL (
    SELECT ended, completed FROM holdfast_job_after WHERE space = %(space)s AND job = n.id OFFSET 0) a
WHERE job.state = 'blocked'
GROUP BY job.id, job.condition ORDER BY job.id
