-- Purpose: insert jobs with their unique keys, chains and waits.

-- name: existing
-- Params: space, ids as JSON.
-- Returns: id, state of the jobs that are stored; and id, -1 for stored chains that started with such an id.
SELECT id, state FROM backstay_job WHERE space = ?1 AND id IN (SELECT value FROM json_each(?2))
UNION ALL
SELECT id, -1 FROM backstay_job_chain WHERE space = ?1 AND id IN (SELECT value FROM json_each(?2));

-- name: last_num
-- Returns: the largest number of a job.
SELECT coalesce(max(num), 0) FROM backstay_job;

-- name: unique_holder
-- Params: space, key.
-- Returns: the holder of a unique key: job, until (0: no window), its state (NULL: its record is deleted).
SELECT u.job, u.until, (SELECT j.state FROM backstay_job j WHERE j.space = u.space AND j.id = u.job)
FROM backstay_job_unique u WHERE u.space = ? AND u.key = ?;

-- name: hold_unique
-- Params: space, key, job, until.
INSERT OR REPLACE INTO backstay_job_unique (space, key, job, until) VALUES (?, ?, ?, ?);

-- name: insert
-- Params: num, space, id, kind, lane, state, rank, due, priority, retries, flags, alarm, enqueued, finished, keep,
-- keep_failed, chain, run, ckey, climit, uniq, args, meta.
INSERT INTO backstay_job (num, space, id, kind, lane, state, rank, due, priority, attempt, retries, snoozes, flags,
    fence, alarm, enqueued, started, finished, keep, keep_failed, progress, worker, chain, run, follower, ckey, climit,
    uniq, args, meta)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0, ?, 0, ?, ?, 0, ?, ?, ?, 0, '', ?, ?, '', ?, ?, ?, ?, ?);

-- name: insert_body
-- Params: num, args, meta that are too large for the job's own row.
INSERT INTO backstay_job_body (num, args, meta) VALUES (?, ?, ?);

-- name: add_wait
-- Params: num, chain, place, ended, space, result.
INSERT INTO backstay_job_wait (num, chain, place, ended, space, result) VALUES (?, ?, ?, ?, ?, ?);

-- name: tail
-- Params: space, chain.
-- Returns: num, id, state (-1: another job follows it), result, flags, run of the last job of a chain that is stored.
SELECT num, id, iif(follower = '', state, -1), result, flags, run FROM backstay_job
WHERE space = ?1 AND id = coalesce((SELECT last FROM backstay_job_chain WHERE space = ?1 AND id = ?2),
    (SELECT id FROM backstay_job WHERE space = ?1 AND id = ?2 AND chain = ''));

-- name: mark_awaited
-- Params: num. Sets AWAITED (4): other jobs wait for its chain.
UPDATE backstay_job SET flags = flags | 4 WHERE num = ?;

-- name: restart_chain
-- Params: space, chain. Deletes the row of an earlier chain with this id.
DELETE FROM backstay_job_chain WHERE space = ? AND id = ?;

-- name: continue_chain
-- Params: space, chain, last. This job is the chain's last one from now on.
INSERT OR REPLACE INTO backstay_job_chain (space, id, last) VALUES (?, ?, ?);

-- name: pass_on_flags
-- Params: num of the preceding job, space, id. Copies CHAIN_WATCHED (2) and AWAITED (4) to the chain's new last job.
UPDATE backstay_job SET flags = flags | (SELECT flags & 6 FROM backstay_job WHERE num = ?) WHERE space = ? AND id = ?;
