-- Purpose: hand out pending jobs, the smallest rank first over all lanes of a group of queues. Does nothing while there
-- are jobs with a rate or a concurrency key in reach: see claim_lanes.sql and what follows it. Nor, unless `runs`, while
-- there are jobs of runs, which are moved with care: see run_transitions.py. Nor while finishes of
-- this step (`expected`: how many; below 0: whatever), or (if `reaped`) leases that ran out and jobs of runs that are
-- due, are left to be seen to with
-- care: what they make pending comes first, too; nor, if `quick` (see cascade.py), while release_heard.sql left
-- something; then what was handed out is told in settings, for what comes behind it.
-- `lazy`: the commit need not wait for the disk, unless one of them has no attempt left behind this one, or replicas are
-- waited for: see "A claim does not wait for the disk" in docs/internals/decisions.md.
-- Parameters: space, worker, incarnation, lane, now, turn, lease (µs), want, spare, look, expected,
-- reaped, runs, quick, lazy, hinted (no more than take_hint.sql allowed); arrays queues, groups, labels.
-- Returns: at least one row: the time; whether there are such jobs; µs until something is due or a lease ends, if
-- `look`, or fewer than wanted were found, or 0 if that was because somebody else held one; then the job (id NULL: none), its flags, rank and upstream;
-- whether others were taking so many of the first that a larger `spare` would find more; whether jobs of runs were left
-- alone; what was set; whether there is a single lane in reach, with nothing special about it (claim_plain.sql; if `quick`,
-- of runs, too: claim_run.sql);
-- where the job's row lies.
WITH
-- include: _clock.sql
, wanted AS MATERIALIZED (
    SELECT CASE WHEN %(hinted)s THEN least(%(want)s, current_setting('backstay.taken')::bigint) ELSE %(want)s END AS n
), near AS MATERIALIZED (
    SELECT l.lane, g.place, l.special OR coalesce(q.rate_burst, 0) > 0 AS special, l.runs
    FROM unnest(%(queues)b, %(groups)b) AS g (queue, place)
    CROSS JOIN LATERAL (SELECT * FROM backstay_job_lane WHERE space = %(space)s AND queue = g.queue OFFSET 0) l
    LEFT JOIN LATERAL (
        SELECT * FROM backstay_job_queue WHERE space = %(space)s AND name = g.queue OFFSET 0) q ON true
    WHERE l.labels <@ %(labels)b AND NOT coalesce(q.paused, false) AND
-- include: _my_turn.sql
        AND (%(expected)s < 0 OR %(expected)s = (
            SELECT cardinality(finished) FROM backstay_job_turn
            WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s))
        AND NOT (%(reaped)s AND
-- include: _late.sql
        )
        AND NOT (%(quick)s AND coalesce(current_setting('backstay.released', true), '') = '{-}')
), state AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE NOT special) AS lanes, min(lane) FILTER (WHERE NOT special) AS single, EXISTS (
        SELECT FROM near n CROSS JOIN LATERAL (
            SELECT FROM backstay_job WHERE lane = n.lane AND state = 'pending' LIMIT 1) j WHERE n.special) AS special,
        NOT %(runs)s AND EXISTS (
        SELECT FROM near n CROSS JOIN LATERAL (
            SELECT FROM backstay_job WHERE lane = n.lane AND state = 'pending' LIMIT 1) j WHERE n.runs) AS runs
    FROM near
), one AS MATERIALIZED (
    SELECT ctid AS place FROM backstay_job
    WHERE lane = (SELECT single FROM state WHERE lanes = 1 AND NOT special AND NOT runs) AND state = 'pending'
    ORDER BY rank, id LIMIT (SELECT n FROM wanted) FOR NO KEY UPDATE SKIP LOCKED
), first AS MATERIALIZED (
    SELECT head.place, near.place AS grp, head.rank, head.id
    FROM near CROSS JOIN LATERAL (
        SELECT ctid AS place, rank, id FROM backstay_job j WHERE j.lane = near.lane AND j.state = 'pending'
        ORDER BY rank, id LIMIT (SELECT n FROM wanted) + %(spare)s) head
    WHERE (SELECT lanes > 1 AND NOT special AND NOT runs FROM state) AND NOT near.special
    ORDER BY grp, head.rank, head.id LIMIT (SELECT n FROM wanted) + %(spare)s
), many AS MATERIALIZED (
    SELECT j.ctid AS place FROM first JOIN backstay_job j ON j.ctid = first.place AND j.state = 'pending'
    ORDER BY first.grp, first.rank, first.id LIMIT (SELECT n FROM wanted) FOR NO KEY UPDATE OF j SKIP LOCKED
), claimed AS (
    UPDATE backstay_job SET state = 'running', fence = greatest(base + nth, last_fence + 1),
        last_fence = greatest(base + nth, last_fence + 1), until = now + %(lease)s, started = now, attempt = attempt + 1,
        worker = %(worker)s, turn = %(turn)s, progress = 0
    FROM (SELECT place, row_number() OVER () AS nth FROM (SELECT place FROM one UNION ALL SELECT place FROM many) c) chosen,
        clock,
-- include: _handed_out.sql
, seen AS MATERIALIZED (
    SELECT clock.now, state.special, CASE WHEN crowd.held THEN 0
        WHEN %(look)s OR (SELECT count(*) FROM claimed) < %(want)s THEN least(
        (SELECT due FROM backstay_job WHERE space = %(space)s AND state = 'scheduled' ORDER BY due LIMIT 1),
        (SELECT until FROM backstay_job WHERE space = %(space)s AND state = 'running' ORDER BY until LIMIT 1)
        ) - clock.now END AS next_in,
        crowd.ed AS crowded, state.runs, (
            SELECT count(*) = 1 AND NOT bool_or(special OR (runs AND NOT %(quick)s)) FROM near) AS single,
        CASE WHEN %(lazy)s AND current_setting('synchronous_standby_names') = ''
            AND NOT EXISTS (SELECT FROM claimed WHERE attempt > retries)
            THEN set_config('synchronous_commit', 'off', true) END AS lazy,
        -- For run_move.sql and claim_upstream.sql.
        CASE WHEN %(quick)s THEN
-- include: _told.sql
        END AS told
    FROM clock, state, LATERAL (
        SELECT (SELECT count(*) FROM claimed) < wanted.n AND (SELECT count(*) FROM first) >= wanted.n + %(spare)s AS ed,
            (SELECT count(*) FROM claimed) < wanted.n AND ((SELECT count(*) FROM first) > (SELECT count(*) FROM many)
                OR EXISTS (SELECT FROM backstay_job WHERE lane = (SELECT single FROM state WHERE lanes = 1 AND NOT special
                    AND NOT runs) AND state = 'pending' AND ctid <> ALL (ARRAY(SELECT place FROM one)))) AS held
        FROM wanted) crowd
)
SELECT seen.now, seen.special, seen.next_in, c.id, c.fence, c.type, c.queue, c.args, c.meta, c.attempt, c.retries,
    c.snoozes, c.priority, c.chain, c.run, c.labels, c.enqueued, c.due, c.until, c.flags, c.rank, c.upstream,
    seen.crowded, seen.runs, seen.lazy, seen.told, seen.single,
    c.whereabouts
FROM seen LEFT JOIN claimed c ON true
