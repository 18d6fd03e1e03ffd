-- Purpose: jobs wait once more for chains of whose end they had heard.
-- Parameters: space; arrays jobs, chains.
UPDATE backstay_job_after a SET ended = false, completed = false, spoilt = false, blame = false, result = NULL
FROM (
    SELECT found.tid FROM unnest(%(jobs)b, %(chains)b) AS n (job, chain) CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job_after
        WHERE space = %(space)s AND job = n.job AND chain = n.chain AND ended OFFSET 0) found) again
WHERE a.ctid = again.tid
