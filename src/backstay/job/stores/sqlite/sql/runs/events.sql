-- Purpose: read the events of runs.

-- name: of_run
-- Reads the events of one run. A row holds several events; its num and seq are those of its last event.
-- Params: space (the namespace's number), id of the run, seq of the last event already read, largest number of rows to
-- return.
-- Returns: num, id of the run, seq, time (µs), encoded events (msgpack) of each row with an event that is not yet read.
SELECT e.num, r.id, e.seq, e.at, e.events FROM backstay_run r CROSS JOIN backstay_run_event e ON e.run = r.num
WHERE r.space = ? AND r.id = ? AND e.seq > ? ORDER BY e.seq LIMIT ?;

-- name: of_all
-- Reads the events of all runs of a namespace. A row holds several events; its num and seq are those of its last
-- event. The high bits of num are the namespace's number (EVENT_BITS in run.py), so a range of num selects a namespace.
-- Params: num of the last event already read, num of the namespace's last event, largest number of rows to return.
-- Returns: num, id of the run, seq, time (µs), encoded events (msgpack) of each row with an event that is not yet read.
SELECT e.num, r.id, e.seq, e.at, e.events FROM backstay_run_event e CROSS JOIN backstay_run r ON r.num = e.run
WHERE e.num > ? AND e.num <= ? ORDER BY e.num LIMIT ?;
