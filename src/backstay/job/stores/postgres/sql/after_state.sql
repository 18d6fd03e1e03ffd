-- Purpose: how far jobs are that wait for others.
-- Parameters: space; array ids.
-- Returns: of those that are blocked the id, the condition, whether a chain has not ended, whether one failed (asked of
-- those alone that start then).
WITH asked (id) AS MATERIALIZED (SELECT * FROM unnest(%(ids)b))
SELECT job.id, job.condition,
    EXISTS (
        SELECT FROM backstay_job_after WHERE space = %(space)s AND job = n.id AND ended < true ORDER BY ended DESC, chain DESC OFFSET 0),
    job.condition = 'any_failure'
        AND EXISTS (SELECT FROM backstay_job_after WHERE space = %(space)s AND job = n.id AND blame)
FROM asked n
CROSS JOIN LATERAL (
    SELECT id, condition, state FROM backstay_job WHERE space = %(space)s AND id = n.id OFFSET 0) job
WHERE job.state = 'blocked'
