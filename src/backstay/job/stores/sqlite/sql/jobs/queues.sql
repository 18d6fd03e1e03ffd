-- Purpose: queue settings (paused, rate limit) and job counts by queue.

-- name: counts
-- Params: space (the namespace's number).
-- Returns: for each queue: name, number of its jobs in each state, in the order of STATES in columns.py. Parked jobs
-- count as pending.
SELECT queue, sum(scheduled), sum(blocked), sum(pending) + sum(parked), sum(running), sum(completed), sum(failed),
    sum(cancelled), sum(skipped)
FROM backstay_job_kind WHERE space = ? GROUP BY queue;

-- name: settings
-- Params: space (the namespace's number).
-- Returns: for each queue that is paused or has a rate limit: name, paused (1 or 0), then the rate: bucket, period
-- (µs), burst.
SELECT name, paused, bucket, period, burst FROM backstay_job_queue WHERE space = ?;

-- name: oldest
-- Params: space (the namespace's number), number of jobs to read per lane.
-- Returns: for each lane with pending jobs: queue, earliest due time (µs) among the first jobs that a claim would take
-- from the lane. An older job with a low priority is missed if it is not among these first jobs.
SELECT queue, (SELECT min(due) FROM (SELECT j.due FROM backstay_job j WHERE j.state = 2 AND j.lane = k.lane
    ORDER BY j.rank LIMIT ?2))
FROM backstay_job_kind k WHERE k.space = ?1 AND k.pending > 0 GROUP BY k.lane;

-- name: oldest_parked
-- Params: space (the namespace's number).
-- Returns: for each kind with parked jobs: queue, due time (µs) of its oldest parked job.
SELECT queue, (SELECT j.due FROM backstay_job j INDEXED BY backstay_job_listed
    WHERE j.state <> 3 AND j.space = k.space AND j.state = 8 AND j.kind = k.num ORDER BY j.id LIMIT 1)
FROM backstay_job_kind k WHERE k.space = ? AND k.parked > 0;

-- name: pause
-- Pauses or resumes a queue.
-- Params: space (the namespace's number), name of the queue, paused (1: pause, 0: resume).
INSERT INTO backstay_job_queue (space, name, paused, bucket, period, burst, tat) VALUES (?, ?, ?, '', 0, 0, 0)
ON CONFLICT DO UPDATE SET paused = excluded.paused;

-- name: limit
-- Sets or removes the rate limit of a queue (GCRA).
-- Params: space (the namespace's number), name of the queue, name of the rate's bucket, period (µs between two starts),
-- burst (starts at once; 0: no limit).
INSERT INTO backstay_job_queue (space, name, paused, bucket, period, burst, tat) VALUES (?, ?, 0, ?, ?, ?, 0)
ON CONFLICT DO UPDATE SET bucket = excluded.bucket, period = excluded.period, burst = excluded.burst;

-- name: delete_default
-- Deletes the queue's row if the queue is neither paused nor limited.
-- Params: space (the namespace's number), name of the queue.
DELETE FROM backstay_job_queue WHERE space = ? AND name = ? AND NOT paused AND burst = 0;
