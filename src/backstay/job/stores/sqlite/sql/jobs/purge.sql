-- Purpose: delete final jobs and the rows that belong to them.

-- name: rows
-- Params: ids of jobs as a JSON array, space (the namespace's number).
-- Returns: num, id, kind, state, chain, flags of each of these jobs.
SELECT num, id, kind, state, chain, flags FROM backstay_job
WHERE space = ?2 AND id IN (SELECT value FROM json_each(?1));

-- name: job
-- Deletes the row of a job.
-- Params: num (row number) of the job.
DELETE FROM backstay_job WHERE num = ?;

-- name: pass_on_alarm
-- The column `alarm` of a completed job is the time at which the job is to be deleted. If several jobs with successive
-- numbers (`num`) were completed together (complete_range in finish.sql), only the first has an alarm, and the others
-- are deleted with it. If a job was deleted alone, this statement gives the job after it an alarm of its own.
-- Params: numbers (`num`) of deleted completed jobs as a JSON array.
UPDATE backstay_job SET alarm = finished + keep
WHERE num IN (SELECT value + 1 FROM json_each(?)) AND state = 4 AND alarm = 0;

-- name: body
-- Deletes the arguments of a job that are too large for the job's row and are stored in a table of their own.
-- Params: num (row number) of the job.
DELETE FROM backstay_job_body WHERE num = ?;

-- name: waits
-- Deletes the blockers of a job.
-- Params: num (row number) of the job.
DELETE FROM backstay_job_wait WHERE num = ?;

-- name: log
-- Deletes the log of a job.
-- Params: num (row number) of the job.
DELETE FROM backstay_job_log WHERE num = ?;

-- name: outputs
-- Deletes the outputs of a job.
-- Params: num (row number) of the job.
DELETE FROM backstay_job_output WHERE num = ?;

-- name: parts
-- Deletes the contents of a job's artifacts.
-- Params: num (row number) of the job.
DELETE FROM backstay_artifact_part WHERE artifact IN (SELECT num FROM backstay_artifact WHERE job = ?);

-- name: files
-- Deletes the artifacts of a job.
-- Params: num (row number) of the job.
DELETE FROM backstay_artifact WHERE job = ?;

-- name: chain
-- Deletes a chain if the deleted job was its last one.
-- Params: space (the namespace's number), chain id, id of the deleted job.
DELETE FROM backstay_job_chain WHERE space = ? AND id = ? AND last = ?;

-- name: kinds
-- Deletes those of the given kinds that have no jobs.
-- Params: numbers (`num`) of kinds as a JSON array.
DELETE FROM backstay_job_kind WHERE num IN (SELECT value FROM json_each(?))
    AND scheduled + blocked + pending + running + completed + failed + cancelled + skipped + parked = 0;
