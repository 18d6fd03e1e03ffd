-- Purpose: remember which chains jobs wait for.
-- Parameters: space, own (chains of the jobs' own run); arrays jobs, chains, each pair once, doubters (those of the jobs
-- that start because of a failure).
INSERT INTO backstay_job_after (space, job, chain, own, doubts)
SELECT %(space)s, n.job, n.chain, %(own)s, n.job = ANY(%(doubters)b) FROM unnest(%(jobs)b, %(chains)b) AS n (job, chain)
