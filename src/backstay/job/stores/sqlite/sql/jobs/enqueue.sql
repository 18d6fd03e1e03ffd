-- Purpose: make jobs.

-- name: existing
-- Params: space, ids as JSON.
-- Returns: id, state of those that are there already; and -1 for what is left of chains that began with such an id.
SELECT id, state FROM backstay_job WHERE space = ?1 AND id IN (SELECT value FROM json_each(?2))
UNION ALL
SELECT id, -1 FROM backstay_job_chain WHERE space = ?1 AND id IN (SELECT value FROM json_each(?2));

-- name: last
-- Returns: the largest number given to a job.
SELECT coalesce(max(num), 0) FROM backstay_job;

-- name: holder
-- Params: space, key.
-- Returns: who has a unique key: job, until when (0: no time), its state (NULL: its record is gone).
SELECT u.job, u.until, (SELECT j.state FROM backstay_job j WHERE j.space = u.space AND j.id = u.job)
FROM backstay_job_unique u WHERE u.space = ? AND u.key = ?;

-- name: hold
-- Params: space, key, job, until.
INSERT OR REPLACE INTO backstay_job_unique (space, key, job, until) VALUES (?, ?, ?, ?);

-- name: job
-- Params: num, space, id, kind, lane, state, rank, due, priority, retries, flags, alarm, enqueued, finished, keep,
-- keep_failed, chain, run, ckey, climit, uniq, args, meta.
INSERT INTO backstay_job (num, space, id, kind, lane, state, rank, due, priority, attempt, retries, snoozes, flags,
    fence, alarm, enqueued, started, finished, keep, keep_failed, progress, worker, chain, run, follower, ckey, climit,
    uniq, args, meta)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0, ?, 0, ?, ?, 0, ?, ?, ?, 0, '', ?, ?, '', ?, ?, ?, ?, ?);

-- name: body
-- Params: num, args, meta: too large for the job's own row.
INSERT INTO backstay_job_body (num, args, meta) VALUES (?, ?, ?);

-- name: wait
-- Params: num, chain, place, ended, space, result.
INSERT INTO backstay_job_wait (num, chain, place, ended, space, result) VALUES (?, ?, ?, ?, ?, ?);

-- name: tail
-- Params: space, chain.
-- Returns: num, id, state (-1: another job follows it), result, flags, run of the last job of a chain that is stored.
SELECT num, id, iif(follower = '', state, -1), result, flags, run FROM backstay_job
WHERE space = ?1 AND id = coalesce((SELECT last FROM backstay_job_chain WHERE space = ?1 AND id = ?2),
    (SELECT id FROM backstay_job WHERE space = ?1 AND id = ?2 AND chain = ''));

-- name: await
-- Params: num: others wait for its chain from now on.
UPDATE backstay_job SET flags = flags | 4 WHERE num = ?;

-- name: begin
-- Params: space, chain: whatever had this name before is gone.
DELETE FROM backstay_job_chain WHERE space = ? AND id = ?;

-- name: follow
-- Params: space, chain, last: the chain goes on with this job.
INSERT OR REPLACE INTO backstay_job_chain (space, id, last) VALUES (?, ?, ?);

-- name: hand_on
-- Params: num of the job before it, space, id: who waits for the chain (2, 4) waits for this job now.
UPDATE backstay_job SET flags = flags | (SELECT flags & 6 FROM backstay_job WHERE num = ?) WHERE space = ? AND id = ?;
