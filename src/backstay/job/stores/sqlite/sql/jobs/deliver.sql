-- Purpose: store the outcome of a chain of another shard for a job that waits for it.

-- name: resolve_wait
-- Params: ended, result, num, chain.
UPDATE backstay_job_wait SET ended = ?, result = ? WHERE num = ? AND chain = ? AND ended = 0;
