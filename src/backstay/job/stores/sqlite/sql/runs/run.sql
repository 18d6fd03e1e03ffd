-- Purpose: a run's own row, which changes with every state transition of its jobs; its events.

-- name: find
-- Params: space, id.
-- Returns: the columns of a RunUpdate.
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
-- Params: num of the last event in the row, run, seq of that event, at, events (msgpack).
INSERT INTO backstay_run_event (num, run, seq, at, told) VALUES (?, ?, ?, ?, ?);

-- name: last_event
-- Params: number of the namespace's last event, num.
UPDATE backstay_job_space SET event = ? WHERE num = ?;
