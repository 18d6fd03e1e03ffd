-- Purpose: insert jobs, with their unique keys, their chains and the blockers that they wait for.

-- name: existing
-- Params: space (the namespace's number), ids of new jobs as a JSON array.
-- Returns: id, state of each of these jobs that is already stored; and id, -1 for each of these ids that is also the
-- id of a chain of several jobs (`backstay_job_chain`). Only -1 for an id: the chain's first job was deleted.
SELECT id, state FROM backstay_job WHERE space = ?1 AND id IN (SELECT value FROM json_each(?2))
UNION ALL
SELECT id, -1 FROM backstay_job_chain WHERE space = ?1 AND id IN (SELECT value FROM json_each(?2));

-- name: last_num
-- Returns: the largest row number (`num`) of a stored job; 0 if no job is stored.
SELECT coalesce(max(num), 0) FROM backstay_job;

-- name: unique_holder
-- Params: space (the namespace's number), unique key.
-- Returns: id of the job that holds the key; until: when the key becomes free (µs), or 0 if the job's start or end
-- frees it; state of the job (NULL: its row is deleted).
SELECT u.job, u.until, (SELECT j.state FROM backstay_job j WHERE j.space = u.space AND j.id = u.job)
FROM backstay_job_unique u WHERE u.space = ? AND u.key = ?;

-- name: hold_unique
-- Makes a job the holder of a unique key.
-- Params: space (the namespace's number), unique key, id of the job, until: when the key becomes free (µs), or 0 if the
-- job's start or end frees it.
INSERT OR REPLACE INTO backstay_job_unique (space, key, job, until) VALUES (?, ?, ?, ?);

-- name: insert
-- Inserts a new job. `backstay_job` in engine/sqlite/migrations/0001_schema.sql describes the columns.
-- Params: the values of num, space, id, kind, lane, state, rank, due, priority, retries, flags, alarm, enqueued,
-- finished, keep, keep_failed, chain ('' for the first job of a chain), run, ckey (concurrency key), climit (its
-- limit), uniq (unique key, msgpack), args, meta.
INSERT INTO backstay_job (num, space, id, kind, lane, state, rank, due, priority, attempt, retries, snoozes, flags,
    fence, alarm, enqueued, started, finished, keep, keep_failed, progress, worker, chain, run, follower, ckey, climit,
    uniq, args, meta)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0, ?, 0, ?, ?, 0, ?, ?, ?, 0, '', ?, ?, '', ?, ?, ?, ?, ?);

-- name: insert_body
-- Stores the args and meta of a job whose own row does not contain them, because they are too large.
-- Params: num (row number) of the job, args, meta.
INSERT INTO backstay_job_body (num, args, meta) VALUES (?, ?, ?);

-- name: add_wait
-- Stores one blocker of a job.
-- Params: num of the job that waits, chain id of the blocker, position among the job's blockers, outcome of the blocker
-- (OUTCOME_* in columns.py), space (the namespace's number), result of the blocker or NULL.
INSERT INTO backstay_job_wait (num, chain, position, outcome, space, result) VALUES (?, ?, ?, ?, ?, ?);

-- name: tail
-- Finds the last stored job of a chain.
-- Params: space (the namespace's number), chain id.
-- Returns: num, id, state, result, flags, run of that job. State -1 means that this job is not the end of its chain:
-- another job continues the chain, but its row is deleted or not inserted yet.
SELECT num, id, iif(follower = '', state, -1), result, flags, run FROM backstay_job
WHERE space = ?1 AND id = coalesce((SELECT last FROM backstay_job_chain WHERE space = ?1 AND id = ?2),
    (SELECT id FROM backstay_job WHERE space = ?1 AND id = ?2 AND chain = ''));

-- name: mark_awaited
-- Sets the flag AWAITED (4) of a job: other jobs wait for its chain.
-- Params: num (row number) of the job.
UPDATE backstay_job SET flags = flags | 4 WHERE num = ?;

-- name: restart_chain
-- Deletes the row of an earlier chain with the id of a new job, because that job starts another chain.
-- Params: space (the namespace's number), chain id.
DELETE FROM backstay_job_chain WHERE space = ? AND id = ?;

-- name: continue_chain
-- Makes a job the last one of its chain.
-- Params: space (the namespace's number), chain id, id of the job.
INSERT OR REPLACE INTO backstay_job_chain (space, id, last) VALUES (?, ?, ?);

-- name: pass_on_flags
-- Copies the flags CHAIN_WATCHED (2) and AWAITED (4) from a job to the job that continues its chain.
-- Params: num of the job to copy from, space (the namespace's number), id of the job that continues the chain.
UPDATE backstay_job SET flags = flags | (SELECT flags & 6 FROM backstay_job WHERE num = ?) WHERE space = ? AND id = ?;
