-- Purpose: remember which chains jobs wait for.
-- Parameters: space; arrays jobs, chains.
INSERT INTO holdfast_job_after (space, job, chain)
SELECT %(space)s, n.job, n.chain FROM unnest(%(jobs)b, %(chains)b) AS n (job, chain)
ON CONFLICT (space, job, chain) DO NOTHING
