-- Purpose: the chains that jobs wait for, or waited for.
-- Parameters: space; array ids.
-- Returns: job, chain, whether it has ended.
SELECT a.job, a.chain, a.ended FROM unnest(%(ids)b) AS n (id)
CROSS JOIN LATERAL (SELECT * FROM backstay_job_after WHERE space = %(space)s AND job = n.id OFFSET 0) a
ORDER BY a.chain
