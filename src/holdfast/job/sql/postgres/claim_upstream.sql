-- Purpose: what the chains came to that jobs waited for.
-- Parameters: space; array ids.
-- Returns: job, chain, result (NULL: it did not complete).
SELECT a.job, a.chain, CASE WHEN a.completed THEN coalesce(a.result, '') END
FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
    SELECT * FROM holdfast_job_after WHERE space = %(space)s AND job = n.id OFFSET 0) a
