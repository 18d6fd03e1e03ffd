-- Purpose: retry a job on request.

-- name: reset
-- Params: state, rank, due, flags, alarm, num. Restores all attempts and clears a cancellation request.
UPDATE backstay_job SET state = ?, rank = ?, due = ?, flags = ?, alarm = ?, attempt = 0, finished = 0, progress = 0,
    result = NULL
WHERE num = ?;

-- name: hold
-- Params: space, key, job. Takes the unique key if it is free.
INSERT OR IGNORE INTO backstay_job_unique (space, key, job, until) VALUES (?, ?, ?, 0);

-- name: dependents
-- Params: space, chain.
-- Returns: a JobRecord for each failed, cancelled or skipped job that waited for this chain and got no result from it.
SELECT j.num, j.id, j.kind, j.lane, j.state, j.due, j.priority, j.attempt, j.retries, j.snoozes, j.flags, j.fence,
    j.worker, j.keep, j.keep_failed, j.chain, j.run, j.ckey, j.uniq, j.error
FROM backstay_job_wait w CROSS JOIN backstay_job j ON j.num = w.num
WHERE w.space = ? AND w.chain = ? AND w.ended IN (1, 2, 3, 4) AND w.result IS NULL AND j.state IN (5, 6, 7) ORDER BY w.num;

-- name: blockers
-- Params: num.
-- Returns: chain, ended of each blocker.
SELECT chain, ended FROM backstay_job_wait WHERE num = ?;

-- name: reopened
-- Params: num.
-- Returns: blockers (chains) that ended without completing and are live again; num of the last job of each.
SELECT w.chain, j.num FROM backstay_job_wait w CROSS JOIN backstay_job j ON j.space = w.space
    AND j.id = coalesce((SELECT last FROM backstay_job_chain WHERE space = w.space AND id = w.chain), w.chain)
WHERE w.num = ? AND w.ended IN (1, 2, 3, 4) AND w.result IS NULL AND j.state IN (0, 1, 2, 3, 8);

-- name: wait_again
-- Params: num, chain.
UPDATE backstay_job_wait SET ended = 0, result = NULL WHERE num = ? AND chain = ?;
