-- Purpose: claim.sql where it is `quick` (cascade.py), for the usual case: a single lane is in reach, with neither rates nor
-- concurrency keys. Hands out nothing where it is otherwise, and says that a larger statement would find more. Setting
-- up a large one is a good part of what it costs, and others wait meanwhile for who waits for the same jobs.
-- Parameters: space, worker, incarnation, lane, now, turn, lease (µs), want, look, expected, reaped, hinted; arrays queues,
-- labels.
-- Returns: as claim.sql.
WITH
-- include: _clock.sql
, wanted AS MATERIALIZED (
    SELECT CASE WHEN %(hinted)s THEN least(%(want)s, current_setting('backstay.taken')::bigint) ELSE %(want)s END AS n
), near AS MATERIALIZED (
    SELECT CASE WHEN count(*) = 1 AND NOT bool_or(l.special OR coalesce(q.rate_burst, 0) > 0) THEN min(l.lane) END AS lane
    FROM unnest(%(queues)b) AS g (queue)
    CROSS JOIN LATERAL (SELECT * FROM backstay_job_lane WHERE space = %(space)s AND queue = g.queue OFFSET 0) l
    LEFT JOIN LATERAL (
        SELECT * FROM backstay_job_queue WHERE space = %(space)s AND name = g.queue OFFSET 0) q ON true
    WHERE l.labels <@ %(labels)b AND NOT coalesce(q.paused, false) AND EXISTS (
            SELECT FROM backstay_job_turn
            WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
                AND xmin = pg_current_xact_id()::xid AND cardinality(finished) = %(expected)s)
        AND NOT (%(reaped)s AND
-- include: _late.sql
        )
        AND coalesce(current_setting('backstay.released', true), '') <> '{-}'
), chosen AS MATERIALIZED (
    SELECT place, row_number() OVER () AS nth FROM (
        SELECT ctid AS place FROM backstay_job WHERE lane = (SELECT lane FROM near) AND state = 'pending'
        ORDER BY rank, id LIMIT (SELECT n FROM wanted) FOR NO KEY UPDATE SKIP LOCKED) held
), claimed AS (
    UPDATE backstay_job SET state = 'running', fence = greatest(base + nth, last_fence + 1),
        last_fence = greatest(base + nth, last_fence + 1), until = now + %(lease)s, started = now, attempt = attempt + 1,
        worker = %(worker)s, turn = %(turn)s, progress = 0
    FROM chosen, clock,
-- include: _handed_out.sql
, seen AS MATERIALIZED (
    SELECT clock.now, near.lane IS NULL AS unusual, CASE
        WHEN short.so AND EXISTS (
            SELECT FROM backstay_job
            WHERE lane = (SELECT lane FROM near) AND state = 'pending' AND ctid <> ALL (ARRAY(SELECT place FROM chosen)))
            THEN 0
        WHEN short.so OR %(look)s THEN least(
            (SELECT due FROM backstay_job WHERE space = %(space)s AND state = 'scheduled' ORDER BY due LIMIT 1),
            (SELECT until FROM backstay_job WHERE space = %(space)s AND state = 'running' ORDER BY until LIMIT 1)
            ) - clock.now END AS next_in,
-- include: _told.sql
        AS told
    FROM clock, near, (SELECT (SELECT count(*) FROM claimed) < wanted.n AS so FROM wanted) short
)
SELECT seen.now, false, seen.next_in, c.id, c.fence, c.type, c.queue, c.args, c.meta, c.attempt, c.retries, c.snoozes,
    c.priority, c.chain, c.run, c.labels, c.enqueued, c.due, c.until, c.flags, c.rank, c.upstream, seen.unusual, false,
    NULL, seen.told, NOT seen.unusual, c.whereabouts
FROM seen LEFT JOIN claimed c ON true
