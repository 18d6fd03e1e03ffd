-- Purpose: compare runs with their jobs, and end those that are past their time.

-- name: late
-- Params: space, now, limit.
-- Returns: ids of runs past their deadline that nobody has cancelled yet.
SELECT id FROM backstay_run WHERE until = 0 AND deadline > 0 AND space = ? AND deadline <= ? AND cancel = 0
ORDER BY deadline LIMIT ?;

-- name: oldest
-- Params: space, limit.
-- Returns: id, num of runs that have not ended, those first that were not compared for the longest time.
SELECT id, num FROM backstay_run WHERE until = 0 AND space = ? ORDER BY checked LIMIT ?;

-- name: counts
-- Params: space, run.
-- Returns: state, how many jobs of the run are in it (of a chain only the last one), how many of those are not soft.
SELECT state, count(*), sum(flags & 1024 = 0) FROM backstay_job
WHERE run <> '' AND space = ? AND run = ? AND follower = '' GROUP BY state;

-- name: checked
-- Params: now, num.
UPDATE backstay_run SET checked = ? WHERE num = ?;
