-- Purpose: hold the jobs of these leases, in one order for all who do.
-- Parameters: space; arrays ids, fences, sorted by id.
-- Returns: place (from 1), id, attempt, retries, snoozes, flags, chain, run, worker, why its cancellation is wanted (NULL: it is
-- not), the time.
SELECT wanted.place, job.id, job.attempt, job.retries, job.snoozes, job.flags, job.chain, job.run, job.worker, job.cancel,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM unnest(%(ids)b, %(fences)b) WITH ORDINALITY AS wanted (id, fence, place)
CROSS JOIN LATERAL (
    SELECT * FROM backstay_job WHERE space = %(space)s AND id = wanted.id AND fence = wanted.fence FOR UPDATE) job
