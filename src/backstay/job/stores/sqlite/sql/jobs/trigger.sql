-- Purpose: try a job again by hand.

-- name: again
-- Params: state, rank, due, flags, alarm, num: with all its attempts, and nobody wants it ended.
UPDATE backstay_job SET state = ?, rank = ?, due = ?, flags = ?, alarm = ?, attempt = 0, finished = 0, progress = 0,
    result = NULL
WHERE num = ?;

-- name: hold
-- Params: space, key, job: its unique key, if nobody has it.
INSERT OR IGNORE INTO backstay_job_unique (space, key, job, until) VALUES (?, ?, ?, 0);

-- name: behind
-- Params: space, chain.
-- Returns: an Entry for each job that failed, was cancelled or was skipped, and had waited for this chain, which did not
-- complete.
SELECT j.num, j.id, j.kind, j.lane, j.state, j.due, j.priority, j.attempt, j.retries, j.snoozes, j.flags, j.fence,
    j.worker, j.keep, j.keep_failed, j.chain, j.run, j.ckey, j.uniq, j.error
FROM backstay_job_wait w CROSS JOIN backstay_job j ON j.num = w.num
WHERE w.space = ? AND w.chain = ? AND w.ended IN (1, 2, 3, 4) AND w.result IS NULL AND j.state IN (5, 6, 7) ORDER BY w.num;

-- name: heard
-- Params: num.
-- Returns: chain, ended of everything that it waits or waited for.
SELECT chain, ended FROM backstay_job_wait WHERE num = ?;

-- name: reopened
-- Params: num.
-- Returns: chains that it waited for, which ended without completing and go on by now; num of the last job of each.
SELECT w.chain, j.num FROM backstay_job_wait w CROSS JOIN backstay_job j ON j.space = w.space
    AND j.id = coalesce((SELECT last FROM backstay_job_chain WHERE space = w.space AND id = w.chain), w.chain)
WHERE w.num = ? AND w.ended IN (1, 2, 3, 4) AND w.result IS NULL AND j.state IN (0, 1, 2, 3, 8);

-- name: wait_again
-- Params: num, chain.
UPDATE backstay_job_wait SET ended = 0, result = NULL WHERE num = ? AND chain = ?;
