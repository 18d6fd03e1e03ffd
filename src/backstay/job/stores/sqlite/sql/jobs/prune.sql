-- Purpose: find and delete expired rows.

-- name: jobs
-- Params: space, state, now, limit.
-- Returns: num, id, kind, state, chain, flags of expired jobs in this final state.
SELECT num, id, kind, state, chain, flags FROM backstay_job
WHERE alarm > 0 AND space = ? AND state = ? AND alarm <= ? ORDER BY alarm LIMIT ?;

-- name: completed_together
-- Params: numbers of completed jobs as JSON, limit.
-- Returns: num, id, kind, state, chain, flags of the jobs that completed together with them and expire with them
-- (alarm 0).
WITH RECURSIVE member (num, space) AS (
    SELECT j.num, j.space FROM json_each(?1) f CROSS JOIN backstay_job j ON j.num = f.value
    UNION ALL
    SELECT j.num, j.space FROM member m CROSS JOIN backstay_job j ON j.num = m.num + 1
    WHERE j.space = m.space AND j.state = 4 AND j.alarm = 0
)
SELECT j.num, j.id, j.kind, j.state, j.chain, j.flags FROM member m CROSS JOIN backstay_job j ON j.num = m.num
WHERE j.alarm = 0 LIMIT ?2;

-- name: completed
-- Params: space.
-- Returns: the number of completed jobs that belong to no run.
SELECT coalesce(sum(completed), 0) FROM backstay_job_kind WHERE space = ? AND runs = 0;

-- name: runs
-- Params: space, now, limit.
-- Returns: num, id of expired runs.
SELECT num, id FROM backstay_run WHERE until > 0 AND space = ? AND until <= ? ORDER BY until LIMIT ?;

-- name: jobs_of
-- Params: space, run.
-- Returns: num, id, kind, state, chain, flags of its jobs.
SELECT num, id, kind, state, chain, flags FROM backstay_job WHERE run <> '' AND space = ? AND run = ?;

-- name: events
-- Params: run.
DELETE FROM backstay_run_event WHERE run = ?;

-- name: doc
-- Params: run.
DELETE FROM backstay_run_doc WHERE num = ?;

-- name: run
-- Params: run.
DELETE FROM backstay_run WHERE num = ?;

-- name: windows
-- Params: space, now, limit. Deletes unique keys whose window has ended.
DELETE FROM backstay_job_unique WHERE (space, key) IN
    (SELECT space, key FROM backstay_job_unique WHERE until > 0 AND space = ? AND until <= ? LIMIT ?);

-- name: rates
-- Params: space, now, limit. Deletes rate buckets that are full again: they equal an absent row.
DELETE FROM backstay_job_rate WHERE (space, bucket) IN
    (SELECT space, bucket FROM backstay_job_rate WHERE space = ? AND tat <= ? LIMIT ?);

-- name: exchanges
-- Params: space, now.
DELETE FROM backstay_job_turn WHERE space = ? AND keep_until <= ?;

-- name: workers
-- Params: space, oldest heartbeat to keep.
DELETE FROM backstay_job_worker WHERE space = ? AND beat < ?;

-- name: tokens
-- Params: space, now.
DELETE FROM backstay_token WHERE space = ? AND expires > 0 AND expires <= ?;
