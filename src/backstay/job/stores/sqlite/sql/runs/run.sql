-- Purpose: a run's own record, which changes with every move of its jobs.

-- name: find
-- Params: space, id.
-- Returns: what changes in a run, with what decides how it does.
SELECT num, status, started, finished, timeout, deadline, keep, until, cancel, reason, events, broken,
    scheduled, blocked, pending, running, completed, failed, cancelled, skipped
FROM backstay_run WHERE space = ? AND id = ?;

-- name: write
-- Params: status, started, finished, deadline, until, cancel, reason, events, broken, the counts by state, num.
UPDATE backstay_run SET status = ?, started = ?, finished = ?, deadline = ?, until = ?, cancel = ?, reason = ?,
    events = ?, broken = ?, scheduled = ?, blocked = ?, pending = ?, running = ?, completed = ?, failed = ?,
    cancelled = ?, skipped = ?
WHERE num = ?;

-- name: event
-- Params: num and seq of the last of them (num, run, seq), at, told.
INSERT INTO backstay_run_event (num, run, seq, at, told) VALUES (?, ?, ?, ?, ?);

-- name: last_event
-- Params: the number of the namespace's last event, num.
UPDATE backstay_job_space SET event = ? WHERE num = ?;
