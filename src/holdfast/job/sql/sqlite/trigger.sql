-- Purpose: try a job again by hand.

-- name: forgive
-- Params: num: blockers that ended badly no longer matter to it.
UPDATE holdfast_job_wait SET ended = 3 WHERE num = ? AND ended = 2;

-- name: again
-- Params: state, rank, due, flags, num: with all its attempts, and nobody wants it ended.
UPDATE holdfast_job SET state = ?, rank = ?, due = ?, flags = ?, attempt = 0, alarm = 0, finished = 0,
    progress = 0, result = NULL
WHERE num = ?;

-- name: hold
-- Params: space, key, job: its unique key, if nobody has it.
INSERT OR IGNORE INTO holdfast_job_unique (space, key, job, until) VALUES (?, ?, ?, 0);

-- name: skipped
-- Params: space, chain.
-- Returns: an Entry for each job that was skipped because this chain ended badly.
SELECT j.num, j.id, j.kind, j.lane, j.state, j.due, j.priority, j.attempt, j.retries, j.snoozes, j.flags, j.fence,
    j.worker, j.keep, j.keep_failed, j.chain, j.run, j.ckey, j.uniq, j.error
FROM holdfast_job_wait w CROSS JOIN holdfast_job j ON j.num = w.num
WHERE w.space = ? AND w.chain = ? AND w.ended = 2 AND j.state = 7 ORDER BY w.num;

-- name: wait_again
-- Params: num, chain.
UPDATE holdfast_job_wait SET ended = 0, result = NULL WHERE num = ? AND chain = ?;
