-- Purpose: find jobs and runs past their retention; delete expired rows of other tables.

-- name: jobs
-- Params: space (the namespace's number), number of a final state, now (µs), largest number of jobs.
-- Returns: num, id, kind, state, chain, flags of jobs in this state that are past their retention.
SELECT num, id, kind, state, chain, flags FROM backstay_job
WHERE alarm > 0 AND space = ? AND state = ? AND alarm <= ? ORDER BY alarm LIMIT ?;

-- name: completed_together
-- Finds the jobs that must be deleted together with given jobs, because one worker finished them together. Of such a
-- group, only the first job stores the time of its deletion (`alarm`, see `complete_range` in finish.sql). The others
-- have alarm 0 and the numbers (`num`) that follow the first one's.
-- Params: numbers (`num`) of the given jobs, all completed, as a JSON array; largest number of jobs to return.
-- Returns: num, id, kind, state, chain, flags of each job found.
WITH RECURSIVE member (num, space) AS (
    SELECT j.num, j.space FROM json_each(?1) f CROSS JOIN backstay_job j ON j.num = f.value
    UNION ALL
    SELECT j.num, j.space FROM member m CROSS JOIN backstay_job j ON j.num = m.num + 1
    WHERE j.space = m.space AND j.state = 4 AND j.alarm = 0
)
SELECT j.num, j.id, j.kind, j.state, j.chain, j.flags FROM member m CROSS JOIN backstay_job j ON j.num = m.num
WHERE j.alarm = 0 LIMIT ?2;

-- name: completed
-- Params: space (the namespace's number).
-- Returns: the number of completed jobs that belong to no run.
SELECT coalesce(sum(completed), 0) FROM backstay_job_kind WHERE space = ? AND runs = 0;

-- name: runs
-- Params: space (the namespace's number), now (µs), largest number of runs.
-- Returns: num (row number), id of runs past their retention.
SELECT num, id FROM backstay_run WHERE keep_until > 0 AND space = ? AND keep_until <= ? ORDER BY keep_until LIMIT ?;

-- name: jobs_of_run
-- Params: space (the namespace's number), run id.
-- Returns: num, id, kind, state, chain, flags of the run's jobs.
SELECT num, id, kind, state, chain, flags FROM backstay_job WHERE run <> '' AND space = ? AND run = ?;

-- name: events
-- Deletes the events of a run.
-- Params: num (row number) of the run.
DELETE FROM backstay_run_event WHERE run = ?;

-- name: doc
-- Deletes the document of a run (its inputs, job names and trigger).
-- Params: num (row number) of the run.
DELETE FROM backstay_run_doc WHERE num = ?;

-- name: run
-- Deletes a run.
-- Params: num (row number) of the run.
DELETE FROM backstay_run WHERE num = ?;

-- name: windows
-- Deletes unique keys with the scope "window" whose time window has ended.
-- Params: space (the namespace's number), now (µs), largest number of keys.
DELETE FROM backstay_job_unique WHERE (space, key) IN
    (SELECT space, key FROM backstay_job_unique WHERE until > 0 AND space = ? AND until <= ? LIMIT ?);

-- name: rates
-- Deletes the state of rate limits whose full burst is available. Without a row, a limit also has its full burst.
-- Params: space (the namespace's number), now (µs), largest number of buckets.
DELETE FROM backstay_job_rate WHERE (space, bucket) IN
    (SELECT space, bucket FROM backstay_job_rate WHERE space = ? AND tat <= ? LIMIT ?);

-- name: exchanges
-- Deletes stored replies whose keep_until has passed: their exchanges are no longer resent.
-- Params: space (the namespace's number), now (µs).
DELETE FROM backstay_job_exchange WHERE space = ? AND keep_until <= ?;

-- name: workers
-- Deletes workers whose last heartbeat is too old.
-- Params: space (the namespace's number), time (µs) of the oldest heartbeat to keep.
DELETE FROM backstay_job_worker WHERE space = ? AND beat < ?;

-- name: tokens
-- Deletes expired API tokens.
-- Params: space (the namespace's number), now (µs).
DELETE FROM backstay_token WHERE space = ? AND expires > 0 AND expires <= ?;
