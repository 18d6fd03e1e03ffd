-- Purpose: tell a job that a chain of another shard has ended.

-- name: told
-- Params: ended, result, num, chain.
UPDATE backstay_job_wait SET ended = ?, result = ? WHERE num = ? AND chain = ? AND ended = 0;
