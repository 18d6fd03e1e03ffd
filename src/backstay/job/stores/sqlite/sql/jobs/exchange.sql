-- Purpose: store the reply to a worker's last exchange, and return it when the exchange is resent; find out when the
-- next job is due or the next lease expires.

-- name: last_seq
-- Params: space (the namespace's number), name of the worker, incarnation (random id of this worker object), number of
-- the worker channel.
-- Returns: seq (sequence number of the channel's last exchange), keep_until (µs; until then its reply is kept).
SELECT seq, keep_until FROM backstay_job_exchange WHERE space = ? AND worker = ? AND incarnation = ? AND channel = ?;

-- name: stored_reply
-- Params: space (the namespace's number), name of the worker, incarnation (random id of this worker object), number of
-- the worker channel.
-- Returns: the parts of the stored reply, both msgpack: verdicts (one for each finished job), jobs (number and fence of
-- each claimed job).
SELECT verdicts, jobs FROM backstay_job_exchange WHERE space = ? AND worker = ? AND incarnation = ? AND channel = ?;

-- name: store_reply
-- Stores the reply to an exchange in place of the channel's previous one.
-- Params: space (the namespace's number), name of the worker, incarnation (random id of this worker object), number of
-- the worker channel, seq (sequence number of the exchange), keep_until (µs), verdicts (one for each finished job,
-- msgpack), jobs (number and fence of each claimed job, msgpack).
INSERT INTO backstay_job_exchange (space, worker, incarnation, channel, seq, keep_until, verdicts, jobs)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seq = excluded.seq, keep_until = excluded.keep_until, verdicts = excluded.verdicts,
    jobs = excluded.jobs;

-- name: replay
-- Reads the jobs of a stored reply, for an exchange that is resent.
-- Params: numbers (`num`) of jobs as a JSON array.
-- Returns: for each of these jobs that is running, the columns of `first` in claim.sql, but the fence instead of the
-- rank.
SELECT j.fence, j.num, j.id, j.kind, j.attempt, j.args, j.meta, j.retries, j.snoozes, j.priority, j.chain, j.run,
    j.enqueued, j.due, j.flags, j.ckey, j.climit, j.uniq
FROM json_each(?) n CROSS JOIN backstay_job j ON j.num = n.value WHERE j.state = 3 ORDER BY j.fence;

-- name: next_due
-- Params: space (the namespace's number).
-- Returns: the time (µs) at which the first scheduled job is due (NULL: no job is scheduled), the time at which the
-- first lease expires (NULL: no job runs).
SELECT (SELECT min(alarm) FROM backstay_job WHERE alarm > 0 AND space = ?1 AND state = 0),
    (SELECT min(alarm) FROM backstay_job WHERE alarm > 0 AND space = ?1 AND state = 3);
