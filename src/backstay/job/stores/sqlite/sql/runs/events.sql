-- Purpose: read the events of runs.

-- name: of_run
-- Params: space, run, after, limit.
-- Returns: num, run, seq, at, told of the rows that hold an event after `after`.
SELECT e.num, r.id, e.seq, e.at, e.told FROM backstay_run r CROSS JOIN backstay_run_event e ON e.run = r.num
WHERE r.space = ? AND r.id = ? AND e.seq > ? ORDER BY e.seq LIMIT ?;

-- name: of_all
-- Params: number of the last event already read, number of the namespace's last event, limit.
-- Returns: as `of_run`.
SELECT e.num, r.id, e.seq, e.at, e.told FROM backstay_run_event e CROSS JOIN backstay_run r ON r.num = e.run
WHERE e.num > ? AND e.num <= ? ORDER BY e.num LIMIT ?;
