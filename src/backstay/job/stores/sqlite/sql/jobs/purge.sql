-- Purpose: delete final jobs and the rows that belong to them.

-- name: rows
-- Params: ids as JSON, space.
-- Returns: num, id, kind, state, chain, flags.
SELECT num, id, kind, state, chain, flags FROM backstay_job
WHERE space = ?2 AND id IN (SELECT value FROM json_each(?1));

-- name: job
-- Params: num.
DELETE FROM backstay_job WHERE num = ?;

-- name: pass_on_alarm
-- Params: numbers of deleted completed jobs as JSON. A job that was to expire with one of them (alarm 0) gets its own
-- alarm.
UPDATE backstay_job SET alarm = finished + keep
WHERE num IN (SELECT value + 1 FROM json_each(?)) AND state = 4 AND alarm = 0;

-- name: body
-- Params: num.
DELETE FROM backstay_job_body WHERE num = ?;

-- name: waits
-- Params: num.
DELETE FROM backstay_job_wait WHERE num = ?;

-- name: log
-- Params: num.
DELETE FROM backstay_job_log WHERE num = ?;

-- name: outputs
-- Params: num.
DELETE FROM backstay_job_output WHERE num = ?;

-- name: parts
-- Params: num.
DELETE FROM backstay_artifact_part WHERE artifact IN (SELECT num FROM backstay_artifact WHERE job = ?);

-- name: files
-- Params: num.
DELETE FROM backstay_artifact WHERE job = ?;

-- name: chain
-- Params: space, chain, its last job.
DELETE FROM backstay_job_chain WHERE space = ? AND id = ? AND last = ?;

-- name: kinds
-- Params: kinds as JSON. Deletes those without jobs.
DELETE FROM backstay_job_kind WHERE num IN (SELECT value FROM json_each(?))
    AND scheduled + blocked + pending + running + completed + failed + cancelled + skipped + parked = 0;
