-- Purpose: store and replay the reply of a worker's last exchange; find the next alarm.
-- The column `lane` holds the number of the worker channel.

-- name: last_seq
-- Params: space, worker, incarnation, channel.
-- Returns: seq, keep_until.
SELECT seq, keep_until FROM backstay_job_turn WHERE space = ? AND worker = ? AND incarnation = ? AND lane = ?;

-- name: stored_reply
-- Params: space, worker, incarnation, channel.
-- Returns: verdicts, jobs.
SELECT verdicts, jobs FROM backstay_job_turn WHERE space = ? AND worker = ? AND incarnation = ? AND lane = ?;

-- name: store_reply
-- Params: space, worker, incarnation, channel, seq, keep_until, verdicts, jobs.
INSERT INTO backstay_job_turn (space, worker, incarnation, lane, seq, keep_until, verdicts, jobs)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seq = excluded.seq, keep_until = excluded.keep_until, verdicts = excluded.verdicts,
    jobs = excluded.jobs;

-- name: replay
-- Params: numbers as JSON.
-- Returns: as `first` in claim.sql, with fence in the place of rank, for the running ones of these jobs.
SELECT j.fence, j.num, j.id, j.kind, j.attempt, j.args, j.meta, j.retries, j.snoozes, j.priority, j.chain, j.run,
    j.enqueued, j.due, j.flags, j.ckey, j.climit, j.uniq
FROM json_each(?) n CROSS JOIN backstay_job j ON j.num = n.value WHERE j.state = 3 ORDER BY j.fence;

-- name: next_due
-- Params: space.
-- Returns: when the first scheduled job is due (NULL: none), when the first lease expires (NULL: no job is running).
SELECT (SELECT min(alarm) FROM backstay_job WHERE alarm > 0 AND space = ?1 AND state = 0),
    (SELECT min(alarm) FROM backstay_job WHERE alarm > 0 AND space = ?1 AND state = 3);
