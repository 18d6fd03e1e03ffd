-- Purpose: hold jobs whose leases are to live on, in one order for all who do: the next statement sees them as they are
-- held, and not as they were before somebody else, whom this one waited for, changed them.
-- Parameters: space, worker; arrays ids, fences, sorted by id.
SELECT job.id FROM unnest(%(ids)b, %(fences)b) AS n (id, fence) CROSS JOIN LATERAL (
    SELECT id FROM backstay_job
    WHERE space = %(space)s AND id = n.id AND fence = n.fence AND worker = %(worker)s FOR NO KEY UPDATE) job
