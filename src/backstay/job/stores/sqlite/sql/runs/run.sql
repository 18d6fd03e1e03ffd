-- Purpose: read and write a run's row, which every state transition of its jobs changes; store its events.

-- name: find
-- Params: space (the namespace's number), id of the run.
-- Returns: the columns that RunUpdate in run.py reads, in its order.
SELECT num, status, started, finished, timeout, deadline, keep, keep_until, cancel, reason, events, hard_failures,
    scheduled, blocked, pending, running, completed, failed, cancelled, skipped
FROM backstay_run WHERE space = ? AND id = ?;

-- name: write
-- Stores a run after its jobs changed.
-- Params: status, started, finished, deadline, keep_until (times in µs), cancel (1: cancellation requested), reason of
-- the cancellation, events (seq of the run's last event), hard_failures (failed jobs that fail the run), the number of
-- jobs in each of the eight states in the order of STATES in columns.py, num of the run.
UPDATE backstay_run SET status = ?, started = ?, finished = ?, deadline = ?, keep_until = ?, cancel = ?, reason = ?,
    events = ?, hard_failures = ?, scheduled = ?, blocked = ?, pending = ?, running = ?, completed = ?, failed = ?,
    cancelled = ?, skipped = ?
WHERE num = ?;

-- name: add_event
-- Stores one row, which holds one or more events of a run.
-- Params: key of the row (the namespace's number in the high bits, then the number of the row's last event within the
-- namespace, see EVENT_BITS in run.py), num of the run, number of the row's last event within the run, time of the
-- events (µs), encoded events (msgpack).
INSERT INTO backstay_run_event (num, run, seq, at, events) VALUES (?, ?, ?, ?, ?);

-- name: set_last_event
-- Params: number of the namespace's last event, number of the namespace.
UPDATE backstay_job_space SET event = ? WHERE num = ?;
