-- Purpose: count the jobs of a run by state, to correct the counts that are stored in the run's row; find runs past
-- their deadline.

-- name: past_deadline
-- Params: space (the namespace's number), now (µs), largest number of runs to return.
-- Returns: the id of each run that is past its deadline and whose cancellation is not requested yet.
SELECT id FROM backstay_run WHERE keep_until = 0 AND deadline > 0 AND space = ? AND deadline <= ? AND cancel = 0
ORDER BY deadline LIMIT ?;

-- name: oldest
-- Params: space (the namespace's number), largest number of runs to return.
-- Returns: id, num of runs that have not ended, least recently checked first.
SELECT id, num FROM backstay_run WHERE keep_until = 0 AND space = ? ORDER BY checked LIMIT ?;

-- name: counts
-- Counts the jobs of a run by state. Of each chain, only the last job is counted.
-- Params: space (the namespace's number), id of the run.
-- Returns: for each state: its number, number of jobs in this state, number of these jobs that are not soft (the
-- failure
-- of a soft job does not fail the run).
SELECT state, count(*), sum(flags & 1024 = 0) FROM backstay_job
WHERE run <> '' AND space = ? AND run = ? AND follower = '' GROUP BY state;

-- name: mark_checked
-- Stores the time at which a run's counts were checked.
-- Params: now (µs), num of the run.
UPDATE backstay_run SET checked = ? WHERE num = ?;
