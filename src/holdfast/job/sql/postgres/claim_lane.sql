-- Purpose: hand out pending jobs where all that is in reach lies in one lane without limits, as it did with the last
-- claim: a part of claim.sql that costs half as much to begin. If that is not so any more, it hands out nothing.
-- Parameters: as claim.sql, without spare.
-- Returns: as claim.sql. `crowded`: it is not so any more; ask claim.sql.
WITH
-- include: _clock.sql
, near AS MATERIALIZED (
    SELECT l.lane, g.place, l.special OR coalesce(q.rate_burst, 0) > 0 AS special
    FROM unnest(%(queues)b, %(groups)b) AS g (queue, place)
    CROSS JOIN LATERAL (SELECT * FROM holdfast_job_lane WHERE space = %(space)s AND queue = g.queue OFFSET 0) l
    LEFT JOIN LATERAL (
        SELECT * FROM holdfast_job_queue WHERE space = %(space)s AND name = g.queue OFFSET 0) q ON true
    WHERE l.labels <@ %(labels)b AND NOT coalesce(q.paused, false) AND
-- include: _my_turn.sql
        AND (%(expected)s < 0 OR %(expected)s = (
            SELECT cardinality(finished) FROM holdfast_job_turn
            WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s))
        AND NOT (%(reaped)s AND EXISTS (
            SELECT FROM holdfast_job
            WHERE space = %(space)s AND state = 'running' AND until <= (SELECT now FROM clock)))
), state AS MATERIALIZED (
    SELECT CASE WHEN count(*) = 1 AND NOT bool_or(special) THEN min(lane) END AS single FROM near
), one AS MATERIALIZED (
    SELECT ctid AS place FROM holdfast_job
    WHERE lane = (SELECT single FROM state) AND state = 'pending'
    ORDER BY rank, id LIMIT %(want)s FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE holdfast_job SET state = 'running', fence = greatest(base + nth, last_fence + 1),
        last_fence = greatest(base + nth, last_fence + 1), until = now + %(lease)s, started = now, attempt = attempt + 1,
        worker = %(worker)s, turn = %(turn)s, progress = 0
    FROM (SELECT place, row_number() OVER () AS nth FROM one) chosen, clock,
        (
            SELECT greatest((SELECT now FROM clock), max(turn.fence) + 1) - 1 AS base
            FROM holdfast_job_turn turn WHERE turn.space = %(space)s) last
    WHERE holdfast_job.ctid = chosen.place
    RETURNING id, fence, type, queue, args, meta, attempt, retries, snoozes, priority, chain, run, labels, enqueued,
        due, until, flags, rank, unique_key
), started AS (
    DELETE FROM holdfast_job_unique USING (
        SELECT u.tid FROM claimed CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM holdfast_job_unique
            WHERE space = %(space)s AND key = claimed.unique_key AND job = claimed.id OFFSET 0) u
        WHERE claimed.flags & 16 <> 0) n
    WHERE holdfast_job_unique.ctid = n.tid
), memo AS (
    UPDATE holdfast_job_turn SET fence = (SELECT max(fence) FROM claimed)
    WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
        AND EXISTS (SELECT FROM claimed)
), seen AS MATERIALIZED (
    SELECT clock.now, CASE WHEN %(look)s OR (SELECT count(*) FROM claimed) < %(want)s THEN least(
        (SELECT due FROM holdfast_job WHERE space = %(space)s AND state = 'scheduled' ORDER BY due LIMIT 1),
        (SELECT until FROM holdfast_job WHERE space = %(space)s AND state = 'running' ORDER BY until LIMIT 1)
        ) - clock.now END AS next_in, single IS NULL AS crowded
    FROM clock, state
)
SELECT seen.now, false, seen.next_in, c.id, c.fence, c.type, c.queue, c.args, c.meta, c.attempt, c.retries,
    c.snoozes, c.priority, c.chain, c.run, c.labels, c.enqueued, c.due, c.until, c.flags, c.rank,
    seen.crowded, true
FROM seen LEFT JOIN claimed c ON true
