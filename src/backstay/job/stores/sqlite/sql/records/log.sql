-- Purpose: log lines and outputs of jobs.

-- name: find
-- Params: space (the namespace's number), id of the job.
-- Returns: num, state, fence, flags of the job.
SELECT num, state, fence, flags FROM backstay_job WHERE space = ? AND id = ?;

-- name: append
-- Stores a log line, unless a line with this sequence number is already stored.
-- Params: num of the job, sequence number of the line, its time (µs), name of its stream (such as stdout, stderr or
-- log), text of the line.
INSERT OR IGNORE INTO backstay_job_log (num, seq, at, stream, data) VALUES (?, ?, ?, ?, ?);

-- name: read
-- Params: num of the job, sequence number of the last line already read, largest number of lines to return.
-- Returns: sequence number, time (µs), name of the stream (such as stdout, stderr or log), text of each of the next
-- lines.
SELECT seq, at, stream, data FROM backstay_job_log WHERE num = ? AND seq > ? ORDER BY seq LIMIT ?;

-- name: put_output
-- Stores an output of a job. An earlier value with this key is replaced.
-- Params: num of the job, key, value.
INSERT OR REPLACE INTO backstay_job_output (num, key, value) VALUES (?, ?, ?);

-- name: outputs
-- Params: num of the job.
-- Returns: key, value of each output of the job.
SELECT key, value FROM backstay_job_output WHERE num = ? ORDER BY key;

-- name: set_flag
-- Sets a flag that says that the job has rows in another table (log, outputs or artifacts). These rows are deleted
-- with the job.
-- Params: flag (a bit), num of the job.
UPDATE backstay_job SET flags = flags | ?1 WHERE num = ?2 AND flags & ?1 = 0;
