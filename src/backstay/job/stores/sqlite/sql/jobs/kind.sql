-- Purpose: kinds of jobs (queue, labels, rate, type) and the number of their jobs by state.

-- name: find
-- Params: space (the namespace's number), queue, labels, rate (bucket, period in µs, burst), job type, runs (1: for
-- jobs of stored runs, 0: for other jobs).
-- Returns: num (row number) and lane of the kind with these attributes.
SELECT num, lane FROM backstay_job_kind
WHERE space = ? AND queue = ? AND labels = ? AND bucket = ? AND period = ? AND burst = ? AND type = ? AND runs = ?;

-- name: find_lane
-- Params: space (the namespace's number), queue, labels, rate (bucket, period in µs, burst).
-- Returns: the number of the lane that all kinds with these attributes share, whatever their type.
SELECT lane FROM backstay_job_kind
WHERE space = ? AND queue = ? AND labels = ? AND bucket = ? AND period = ? AND burst = ? LIMIT 1;

-- name: add
-- Inserts a kind.
-- Params: space (the namespace's number), queue, labels, rate (bucket, period in µs, burst), job type, runs (1: for
-- jobs of stored runs, 0: for other jobs), number of the lane (0: `own_lane` will set it).
INSERT INTO backstay_job_kind (space, queue, labels, bucket, period, burst, type, runs, lane)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: own_lane
-- Gives a kind a new lane, which bears the number of the kind.
-- Params: num (row number) of the kind.
UPDATE backstay_job_kind SET lane = num WHERE num = ?;

-- name: change_counts
-- Changes the job counts of a kind.
-- Params: one number for each state in the order of COLUMNS in columns.py, to be added to the count of that state; num
-- (row number) of the kind.
UPDATE backstay_job_kind SET scheduled = scheduled + ?, blocked = blocked + ?, pending = pending + ?,
    running = running + ?, completed = completed + ?, failed = failed + ?, cancelled = cancelled + ?,
    skipped = skipped + ?, parked = parked + ?
WHERE num = ?;

-- name: types
-- Params: numbers (`num`) of kinds as a JSON array.
-- Returns: num, type of each kind.
SELECT num, type FROM backstay_job_kind WHERE num IN (SELECT value FROM json_each(?));
