-- Purpose: compare run counts with the jobs; find runs past their deadline.

-- name: late
-- Params: space, now, limit.
-- Returns: ids of runs past their deadline without a cancellation request.
SELECT id FROM backstay_run WHERE until = 0 AND deadline > 0 AND space = ? AND deadline <= ? AND cancel = 0
ORDER BY deadline LIMIT ?;

-- name: oldest
-- Params: space, limit.
-- Returns: id, num of runs that have not ended, least recently checked first.
SELECT id, num FROM backstay_run WHERE until = 0 AND space = ? ORDER BY checked LIMIT ?;

-- name: counts
-- Params: space, run.
-- Returns: state, number of the run's jobs in it (of a chain only the last one), number of those that are not soft.
SELECT state, count(*), sum(flags & 1024 = 0) FROM backstay_job
WHERE run <> '' AND space = ? AND run = ? AND follower = '' GROUP BY state;

-- name: checked
-- Params: now, num.
UPDATE backstay_run SET checked = ? WHERE num = ?;
