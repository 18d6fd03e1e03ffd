-- Purpose: values that a job leaves, for whoever has its lease.
-- Parameters: space, job, fence; arrays keys, vals.
-- Returns: whether the lease is current.
WITH lease AS MATERIALIZED (
    SELECT FROM backstay_job WHERE space = %(space)s AND id = %(job)s AND fence = %(fence)s AND fence > 0
    FOR SHARE
), may AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM lease) OR (%(fence)s = 0 AND (
        EXISTS (SELECT FROM backstay_job WHERE space = %(space)s AND id = %(job)s)
        OR EXISTS (SELECT FROM backstay_job_done WHERE space = %(space)s AND id = %(job)s))) AS ok
), stored AS (
    INSERT INTO backstay_job_output (space, job, key, value)
    SELECT %(space)s, %(job)s, n.key, n.value FROM unnest(%(keys)b, %(vals)b) AS n (key, value), may WHERE may.ok
    ORDER BY n.key
    ON CONFLICT (space, job, key) DO UPDATE SET value = excluded.value
)
SELECT ok FROM may
