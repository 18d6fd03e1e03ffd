-- Purpose: kinds of jobs (queue, labels, rate, type) and their counts by state.

-- name: find
-- Params: space, queue, labels, bucket, period, burst, type, runs.
-- Returns: num, lane.
SELECT num, lane FROM backstay_job_kind
WHERE space = ? AND queue = ? AND labels = ? AND bucket = ? AND period = ? AND burst = ? AND type = ? AND runs = ?;

-- name: lane
-- Params: space, queue, labels, bucket, period, burst.
-- Returns: the lane of the other types with these attributes.
SELECT lane FROM backstay_job_kind
WHERE space = ? AND queue = ? AND labels = ? AND bucket = ? AND period = ? AND burst = ? LIMIT 1;

-- name: add
-- Params: space, queue, labels, bucket, period, burst, type, runs, lane (0: a new lane, set by `own`).
INSERT INTO backstay_job_kind (space, queue, labels, bucket, period, burst, type, runs, lane)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: own
-- Params: num.
UPDATE backstay_job_kind SET lane = num WHERE num = ?;

-- name: count
-- Params: change of each state's count, in the order of the states; num.
UPDATE backstay_job_kind SET scheduled = scheduled + ?, blocked = blocked + ?, pending = pending + ?,
    running = running + ?, completed = completed + ?, failed = failed + ?, cancelled = cancelled + ?,
    skipped = skipped + ?, parked = parked + ?
WHERE num = ?;

-- name: types
-- Params: kinds as JSON.
-- Returns: num, type.
SELECT num, type FROM backstay_job_kind WHERE num IN (SELECT value FROM json_each(?));
