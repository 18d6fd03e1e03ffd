-- Purpose: retry a job on request.

-- name: reset
-- Gives a job a state that is not final and sets the number of its attempts back to zero.
-- Params: new state, rank (order among pending jobs), due time (µs), flags,
-- alarm (µs; the due time of a scheduled job, otherwise 0), num of the job.
UPDATE backstay_job SET state = ?, rank = ?, due = ?, flags = ?, alarm = ?, attempt = 0, finished = 0, progress = 0,
    result = NULL
WHERE num = ?;

-- name: hold_unique
-- Lets a retried job hold its unique key. Does nothing if another job holds the key.
-- Params: space (the namespace's number), unique key, id of the job.
INSERT OR IGNORE INTO backstay_job_unique (space, key, job, until) VALUES (?, ?, ?, 0);

-- name: dependents
-- Params: space (the namespace's number), id of a chain that ended without completing.
-- Returns: the columns of a JobRecord (columns.py) for each failed, cancelled or skipped job that waited for the chain.
SELECT j.num, j.id, j.kind, j.lane, j.state, j.due, j.priority, j.attempt, j.retries, j.snoozes, j.flags, j.fence,
    j.worker, j.keep, j.keep_failed, j.chain, j.run, j.ckey, j.uniq, j.error
FROM backstay_job_wait w CROSS JOIN backstay_job j ON j.num = w.num
WHERE w.space = ? AND w.chain = ? AND w.outcome IN (1, 2, 3, 4) AND w.result IS NULL AND j.state IN (5, 6, 7)
ORDER BY w.num;

-- name: blockers
-- Params: num of the job.
-- Returns: for each chain that the job waits for: chain's id, outcome (OUTCOME_* in columns.py).
SELECT chain, outcome FROM backstay_job_wait WHERE num = ?;

-- name: reopened
-- Finds the chains for which a job is to wait again: they had ended without completing when the job stopped waiting for
-- them, and their last job has been retried since then, so it is in a state that is not final.
-- Params: num of the waiting job.
-- Returns: for each of these chains: chain's id, num of the chain's last job.
SELECT w.chain, j.num FROM backstay_job_wait w CROSS JOIN backstay_job j ON j.space = w.space
    AND j.id = coalesce((SELECT last FROM backstay_job_chain WHERE space = w.space AND id = w.chain), w.chain)
WHERE w.num = ? AND w.outcome IN (1, 2, 3, 4) AND w.result IS NULL AND j.state IN (0, 1, 2, 3, 8);

-- name: wait_again
-- Lets a job wait for a chain again, after the chain's end had already been recorded.
-- Params: num of the waiting job, id of the chain.
UPDATE backstay_job_wait SET outcome = 0, result = NULL WHERE num = ? AND chain = ?;
