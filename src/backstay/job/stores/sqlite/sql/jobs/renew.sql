-- Purpose: renew leases.

-- name: found
-- Params: space, ids as JSON.
-- Returns: id, num, fence, worker, flags of the running ones of these jobs.
SELECT id, num, fence, worker, flags FROM backstay_job
WHERE space = ? AND id IN (SELECT value FROM json_each(?)) AND state = 3;

-- name: renew
-- Params: until, progress (below 0: unchanged), num.
UPDATE backstay_job SET alarm = ?1, progress = iif(?2 < 0, progress, ?2) WHERE num = ?3;
