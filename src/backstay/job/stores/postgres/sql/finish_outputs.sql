-- Purpose: values that jobs leave with their end. Whoever calls it holds the jobs.
-- Parameters: space; arrays jobs, keys, vals.
INSERT INTO backstay_job_output (space, job, key, value)
SELECT %(space)s, n.job, n.key, n.value FROM unnest(%(jobs)b, %(keys)b, %(vals)b) AS n (job, key, value)
ORDER BY n.job, n.key
ON CONFLICT (space, job, key) DO UPDATE SET value = excluded.value
