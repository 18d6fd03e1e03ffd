-- Purpose: list jobs in pages, newest first.

-- name: all
-- Params: space, before, limit.
-- Returns: ids.
SELECT id FROM backstay_job WHERE space = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: run
-- Params: space, run, before, state (-1: any), queue ('': any), type ('': any), limit; parked counts as pending.
-- Returns: ids.
SELECT j.id FROM backstay_job j CROSS JOIN backstay_job_kind k ON k.num = j.kind
WHERE j.run <> '' AND j.space = ?1 AND j.run = ?2 AND j.id < ?3
    AND (?4 < 0 OR j.state = ?4 OR (?4 = 2 AND j.state = 8))
    AND (?5 = '' OR k.queue = ?5) AND (?6 = '' OR k.type = ?6)
ORDER BY j.id DESC LIMIT ?7;

-- name: results
-- Params: space, run, before, limit.
-- Returns: id, type, state, chain, follower, result.
SELECT j.id, k.type, j.state, j.chain, j.follower, j.result FROM backstay_job j CROSS JOIN backstay_job_kind k ON k.num = j.kind
WHERE j.run <> '' AND j.space = ?1 AND j.run = ?2 AND j.id < ?3 ORDER BY j.id DESC LIMIT ?4;

-- name: kinds
-- Params: space, queue ('': any), type ('': any).
-- Returns: num, and the number of jobs in each state, in the order of the states.
SELECT num, scheduled, blocked, pending, running, completed, failed, cancelled, skipped, parked FROM backstay_job_kind
WHERE space = ?1 AND (?2 = '' OR queue = ?2) AND (?3 = '' OR type = ?3);

-- name: loose_kinds
-- Params: space, queue ('': any), state.
-- Returns: num, the number of its jobs in that final state, for kinds whose jobs belong to no run.
SELECT num, CASE ?3 WHEN 4 THEN completed WHEN 5 THEN failed WHEN 6 THEN cancelled ELSE skipped END
FROM backstay_job_kind WHERE space = ?1 AND runs = 0 AND (?2 = '' OR queue = ?2);

-- name: newest
-- Params: space, state, before, limit.
-- Returns: ids, newest first, of one state (other than running).
SELECT id FROM backstay_job INDEXED BY backstay_job_listed
WHERE state <> 3 AND space = ? AND state = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: newest_of
-- Params: space, state, before, kinds as JSON, limit.
-- Returns: as `newest`, for some kinds. Reads the index only.
SELECT id FROM backstay_job INDEXED BY backstay_job_listed
WHERE state <> 3 AND space = ? AND state = ? AND id < ? AND kind IN (SELECT value FROM json_each(?))
ORDER BY id DESC LIMIT ?;

-- name: oldest_of
-- Params: space, state, kinds as JSON, limit.
-- Returns: ids, oldest first, of one state (other than running) and some kinds. Reads the index only.
SELECT id FROM backstay_job INDEXED BY backstay_job_listed
WHERE state <> 3 AND space = ? AND state = ? AND kind IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?;

-- name: running
-- Params: space, kinds as JSON, before, limit.
-- Returns: ids of running jobs. The total concurrency of the workers bounds their number.
SELECT id FROM backstay_job INDEXED BY backstay_job_alarm
WHERE alarm > 0 AND space = ? AND state = 3 AND kind IN (SELECT value FROM json_each(?)) AND id < ? ORDER BY id DESC LIMIT ?;

-- name: shown
-- Params: space, ids as JSON.
-- Returns: as `get` in get.sql, for each id.
SELECT j.num, j.id, k.type, k.queue, j.state, j.args, j.meta, k.labels, j.priority, j.attempt, j.retries, j.snoozes,
    j.chain, j.run, j.fence, j.worker, j.alarm, j.enqueued, j.due, j.started, j.finished, j.progress, j.flags, j.result,
    j.error, j.uniq, j.ckey, j.climit, j.follower
FROM json_each(?2) n CROSS JOIN backstay_job j ON j.space = ?1 AND j.id = n.value
CROSS JOIN backstay_job_kind k ON k.num = j.kind ORDER BY j.id DESC;
