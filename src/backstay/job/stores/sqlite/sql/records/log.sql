-- Purpose: log lines and outputs of jobs.

-- name: found
-- Params: space, id.
-- Returns: num, state, fence, flags.
SELECT num, state, fence, flags FROM backstay_job WHERE space = ? AND id = ?;

-- name: append
-- Params: num, seq, at, stream, data. A stored seq is left unchanged.
INSERT OR IGNORE INTO backstay_job_log (num, seq, at, stream, data) VALUES (?, ?, ?, ?, ?);

-- name: read
-- Params: num, after, limit.
-- Returns: seq, at, stream, data.
SELECT seq, at, stream, data FROM backstay_job_log WHERE num = ? AND seq > ? ORDER BY seq LIMIT ?;

-- name: put
-- Params: num, key, value.
INSERT OR REPLACE INTO backstay_job_output (num, key, value) VALUES (?, ?, ?);

-- name: outputs
-- Params: num.
-- Returns: key, value.
SELECT key, value FROM backstay_job_output WHERE num = ? ORDER BY key;

-- name: flag
-- Params: flags, num. The flag says which dependent rows to delete with the job.
UPDATE backstay_job SET flags = flags | ?1 WHERE num = ?2 AND flags & ?1 = 0;
