-- Purpose: a step is asked for again: the jobs that are still under the leases that it gave, renewed.
-- Parameters: space, worker, turn, lease (µs), now.
-- Returns: as claim.sql.
WITH
-- include: _clock.sql
, held AS (
    UPDATE backstay_job SET until = clock.now + %(lease)s FROM clock
    WHERE space = %(space)s AND state = 'running' AND worker = %(worker)s AND turn = %(turn)s
    RETURNING id, fence, type, queue, args, meta, attempt, retries, snoozes, priority, chain, run, labels, enqueued,
        due, until, flags, rank, upstream
)
SELECT clock.now, false, NULL::bigint, held.* FROM clock LEFT JOIN held ON true
