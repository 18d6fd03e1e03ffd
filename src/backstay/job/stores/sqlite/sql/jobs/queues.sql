-- Purpose: queue settings (paused, rate limit) and job counts by queue.

-- name: counts
-- Params: space.
-- Returns: queue and its counts by state, in the order of the states.
SELECT queue, sum(scheduled), sum(blocked), sum(pending) + sum(parked), sum(running), sum(completed), sum(failed),
    sum(cancelled), sum(skipped)
FROM backstay_job_kind WHERE space = ? GROUP BY queue;

-- name: settings
-- Params: space.
-- Returns: name, paused, bucket, period, burst.
SELECT name, paused, bucket, period, burst FROM backstay_job_queue WHERE space = ?;

-- name: oldest
-- Params: space, number of jobs to read per lane.
-- Returns: queue, earliest due time among the first pending jobs of a lane. An older job with a low priority may be
-- further back.
SELECT queue, (SELECT min(due) FROM (SELECT j.due FROM backstay_job j WHERE j.state = 2 AND j.lane = k.lane
    ORDER BY j.rank LIMIT ?2))
FROM backstay_job_kind k WHERE k.space = ?1 AND k.pending > 0 GROUP BY k.lane;

-- name: oldest_parked
-- Params: space.
-- Returns: queue, due time of the oldest parked job of a kind.
SELECT queue, (SELECT j.due FROM backstay_job j INDEXED BY backstay_job_listed
    WHERE j.state <> 3 AND j.space = k.space AND j.state = 8 AND j.kind = k.num ORDER BY j.id LIMIT 1)
FROM backstay_job_kind k WHERE k.space = ? AND k.parked > 0;

-- name: pause
-- Params: space, name, paused.
INSERT INTO backstay_job_queue (space, name, paused, bucket, period, burst, tat) VALUES (?, ?, ?, '', 0, 0, 0)
ON CONFLICT DO UPDATE SET paused = excluded.paused;

-- name: limit
-- Params: space, name, bucket, period, burst.
INSERT INTO backstay_job_queue (space, name, paused, bucket, period, burst, tat) VALUES (?, ?, 0, ?, ?, ?, 0)
ON CONFLICT DO UPDATE SET bucket = excluded.bucket, period = excluded.period, burst = excluded.burst;

-- name: forget
-- Params: space, name. Deletes the row of a queue with default settings.
DELETE FROM backstay_job_queue WHERE space = ? AND name = ? AND NOT paused AND burst = 0;
