-- Purpose: hand out jobs that are held.
-- Parameters: space, worker, incarnation, lane, turn, lease (µs), now; array ids.
-- Returns: as claim.sql.
WITH
-- include: _clock.sql
, found AS MATERIALIZED (
    SELECT job.tid, n.nth FROM unnest(%(ids)b) WITH ORDINALITY AS n (id, nth) CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = n.id OFFSET 0) job
), claimed AS (
    UPDATE backstay_job SET state = 'running', fence = greatest(base + nth, last_fence + 1),
        last_fence = greatest(base + nth, last_fence + 1), until = now + %(lease)s, started = now, attempt = attempt + 1,
        worker = %(worker)s, turn = %(turn)s, progress = 0
    FROM found, clock,
        (
            SELECT greatest((SELECT now FROM clock), max(turn.fence) + 1) - 1 AS base
            FROM backstay_job_turn turn WHERE turn.space = %(space)s) last
    WHERE backstay_job.ctid = tid AND state = 'pending'
    RETURNING id, fence, type, queue, args, meta, attempt, retries, snoozes, priority, chain, run, labels, enqueued,
        due, until, flags, rank, upstream, unique_key
),
-- include: _started.sql
, memo AS (
    UPDATE backstay_job_turn SET fence = (SELECT max(fence) FROM claimed)
    WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
        AND EXISTS (SELECT FROM claimed)
)
SELECT clock.now, false, NULL::bigint, c.id, c.fence, c.type, c.queue, c.args, c.meta, c.attempt, c.retries,
    c.snoozes, c.priority, c.chain, c.run, c.labels, c.enqueued, c.due, c.until, c.flags, c.rank, c.upstream
FROM clock LEFT JOIN claimed c ON true
