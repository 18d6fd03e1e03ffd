-- Purpose: read one job.

-- name: get
-- Params: space, id.
-- Returns: all columns of the job.
SELECT j.num, j.id, k.type, k.queue, j.state, j.args, j.meta, k.labels, j.priority, j.attempt, j.retries, j.snoozes,
    j.chain, j.run, j.fence, j.worker, j.alarm, j.enqueued, j.due, j.started, j.finished, j.progress, j.flags, j.result,
    j.error, j.uniq, j.ckey, j.climit, j.follower
FROM backstay_job j CROSS JOIN backstay_job_kind k ON k.num = j.kind
WHERE j.space = ? AND j.id = ?;

-- name: waits
-- Params: num.
-- Returns: chain, ended of each blocker.
SELECT chain, ended FROM backstay_job_wait WHERE num = ? ORDER BY place;

-- name: body
-- Params: num.
-- Returns: args, meta that were too large for the job's own row.
SELECT args, meta FROM backstay_job_body WHERE num = ?;
