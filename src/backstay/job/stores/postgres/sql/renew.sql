-- Purpose: leases live on, if they are still their owner's. After renew_hold.sql.
-- Parameters: space, worker, lease (µs), now; arrays ids, fences, progress (below 0: as it was), sorted by id.
-- Returns: id, fence, whether its cancellation is wanted, where its row lies now.
WITH
-- include: _clock.sql
, held AS MATERIALIZED (
    SELECT job.place, n.progress
    FROM unnest(%(ids)b, %(fences)b, %(progress)b) AS n (id, fence, progress) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM backstay_job
        WHERE space = %(space)s AND id = n.id AND fence = n.fence AND worker = %(worker)s OFFSET 0) job
)
UPDATE backstay_job job SET until = clock.now + %(lease)s,
    progress = CASE WHEN held.progress < 0 THEN job.progress ELSE held.progress END
FROM held, clock WHERE job.ctid = held.place
RETURNING job.id, job.fence, job.cancel IS NOT NULL, job.ctid
