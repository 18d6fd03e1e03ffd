-- Purpose: renew leases.

-- name: find_running
-- Params: space (the namespace's number), ids of jobs as a JSON array.
-- Returns: id, num, fence, worker, flags of each of these jobs that is running.
SELECT id, num, fence, worker, flags FROM backstay_job
WHERE space = ? AND id IN (SELECT value FROM json_each(?)) AND state = 3;

-- name: renew
-- Extends the lease of a job and stores its progress.
-- Params: new end of the lease (µs), progress (below 0: leave it unchanged), num of the job.
UPDATE backstay_job SET alarm = ?1, progress = iif(?2 < 0, progress, ?2) WHERE num = ?3;
