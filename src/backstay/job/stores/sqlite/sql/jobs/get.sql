-- Purpose: read one job.

-- name: get
-- Params: space (the namespace's number), id of the job.
-- Returns: the columns from which `to_job` in query/get.py builds a Job. Type, queue and labels are those of the job's
-- kind.
SELECT j.num, j.id, k.type, k.queue, j.state, j.args, j.meta, k.labels, j.priority, j.attempt, j.retries, j.snoozes,
    j.chain, j.run, j.fence, j.worker, j.alarm, j.enqueued, j.due, j.started, j.finished, j.progress, j.flags, j.result,
    j.error, j.uniq, j.ckey, j.climit, j.follower
FROM backstay_job j CROSS JOIN backstay_job_kind k ON k.num = j.kind
WHERE j.space = ? AND j.id = ?;

-- name: waits
-- Params: num (row number) of the job.
-- Returns: for each blocker of the job, in the order in which the job names them: chain id, outcome (OUTCOME_* in
-- columns.py).
SELECT chain, outcome FROM backstay_job_wait WHERE num = ? ORDER BY position;

-- name: body
-- Params: num (row number) of the job.
-- Returns: args and meta of a job whose own row does not contain them, because they are too large.
SELECT args, meta FROM backstay_job_body WHERE num = ?;
