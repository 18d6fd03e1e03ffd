-- Purpose: read what happened in runs.

-- name: of_run
-- Params: space, run, after, limit.
-- Returns: num, run, seq, at, told of rows that have an event behind `after` in them.
SELECT e.num, r.id, e.seq, e.at, e.told FROM backstay_run r CROSS JOIN backstay_run_event e ON e.run = r.num
WHERE r.space = ? AND r.id = ? AND e.seq > ? ORDER BY e.seq LIMIT ?;

-- name: of_all
-- Params: the number of the last event that is known, that of the last event of the namespace, limit.
-- Returns: the same.
SELECT e.num, r.id, e.seq, e.at, e.told FROM backstay_run_event e CROSS JOIN backstay_run r ON r.num = e.run
WHERE e.num > ? AND e.num <= ? ORDER BY e.num LIMIT ?;
