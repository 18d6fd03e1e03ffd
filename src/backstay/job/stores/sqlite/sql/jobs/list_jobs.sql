-- Purpose: list jobs in pages, newest first.

-- name: all
-- Params: space (the namespace's number), before (a job id: only older jobs are returned), largest number of jobs.
-- Returns: ids of jobs, newest first.
SELECT id FROM backstay_job WHERE space = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: run
-- Lists the jobs of a run.
-- Params: space (the namespace's number), run id, before (a job id: only older jobs are returned), state (-1: any;
-- pending includes parked jobs), queue ('': any), job type ('': any), largest number of jobs.
-- Returns: ids of jobs, newest first.
SELECT j.id FROM backstay_job j CROSS JOIN backstay_job_kind k ON k.num = j.kind
WHERE j.run <> '' AND j.space = ?1 AND j.run = ?2 AND j.id < ?3
    AND (?4 < 0 OR j.state = ?4 OR (?4 = 2 AND j.state = 8))
    AND (?5 = '' OR k.queue = ?5) AND (?6 = '' OR k.type = ?6)
ORDER BY j.id DESC LIMIT ?7;

-- name: results
-- Lists the results of a run's jobs.
-- Params: space (the namespace's number), run id, before (a job id: only older jobs are returned), largest number of
-- jobs.
-- Returns: id, type, state, chain, follower (id of the job that continues the chain), result of each job, newest first.
SELECT j.id, k.type, j.state, j.chain, j.follower, j.result
FROM backstay_job j CROSS JOIN backstay_job_kind k ON k.num = j.kind
WHERE j.run <> '' AND j.space = ?1 AND j.run = ?2 AND j.id < ?3 ORDER BY j.id DESC LIMIT ?4;

-- name: kinds
-- Params: space (the namespace's number), queue ('': any), job type ('': any).
-- Returns: for each kind: num (row number), then the number of its jobs in each state, in the order of COLUMNS in
-- columns.py.
SELECT num, scheduled, blocked, pending, running, completed, failed, cancelled, skipped, parked FROM backstay_job_kind
WHERE space = ?1 AND (?2 = '' OR queue = ?2) AND (?3 = '' OR type = ?3);

-- name: kinds_without_run
-- Params: space (the namespace's number), queue ('': any), number of a final state.
-- Returns: for each kind whose jobs belong to no run: num (row number), number of its jobs in that state.
SELECT num, CASE ?3 WHEN 4 THEN completed WHEN 5 THEN failed WHEN 6 THEN cancelled ELSE skipped END
FROM backstay_job_kind WHERE space = ?1 AND runs = 0 AND (?2 = '' OR queue = ?2);

-- name: newest
-- Params: space (the namespace's number), number of a state other than running, before (a job id: only older jobs are
-- returned), largest number of jobs.
-- Returns: ids of jobs in this state, newest first.
SELECT id FROM backstay_job INDEXED BY backstay_job_listed
WHERE state <> 3 AND space = ? AND state = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: newest_of
-- Reads only the index `backstay_job_listed`, not the rows of the jobs.
-- Params: space (the namespace's number), number of a state other than running, before (a job id: only older jobs are
-- returned), numbers of kinds as a JSON array, largest number of jobs.
-- Returns: ids of jobs of these kinds in this state, newest first.
SELECT id FROM backstay_job INDEXED BY backstay_job_listed
WHERE state <> 3 AND space = ? AND state = ? AND id < ? AND kind IN (SELECT value FROM json_each(?))
ORDER BY id DESC LIMIT ?;

-- name: oldest_of
-- Reads only the index `backstay_job_listed`, not the rows of the jobs.
-- Params: space (the namespace's number), number of a state other than running, numbers of kinds as a JSON array,
-- largest number of jobs.
-- Returns: ids of jobs of these kinds in this state, oldest first.
SELECT id FROM backstay_job INDEXED BY backstay_job_listed
WHERE state <> 3 AND space = ? AND state = ? AND kind IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?;

-- name: running
-- The index `backstay_job_listed` does not contain running jobs, so this statement reads and sorts all of them. There
-- are at most as many as the workers have slots.
-- Params: space (the namespace's number), numbers of kinds as a JSON array, before (a job id: only older jobs are
-- returned), largest number of jobs.
-- Returns: ids of running jobs of these kinds, newest first.
SELECT id FROM backstay_job INDEXED BY backstay_job_alarm
WHERE alarm > 0 AND space = ? AND state = 3 AND kind IN (SELECT value FROM json_each(?)) AND id < ?
ORDER BY id DESC LIMIT ?;

-- name: rows
-- Params: space (the namespace's number), ids of jobs as a JSON array.
-- Returns: the columns of `get` in get.sql for each of these jobs, newest first.
SELECT j.num, j.id, k.type, k.queue, j.state, j.args, j.meta, k.labels, j.priority, j.attempt, j.retries, j.snoozes,
    j.chain, j.run, j.fence, j.worker, j.alarm, j.enqueued, j.due, j.started, j.finished, j.progress, j.flags, j.result,
    j.error, j.uniq, j.ckey, j.climit, j.follower
FROM json_each(?2) n CROSS JOIN backstay_job j ON j.space = ?1 AND j.id = n.value
CROSS JOIN backstay_job_kind k ON k.num = j.kind ORDER BY j.id DESC;
