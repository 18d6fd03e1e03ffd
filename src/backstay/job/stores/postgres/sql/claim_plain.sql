-- Purpose: a step that only claims, in one statement: turn.sql and claim.sql for the usual case, that a single lane is in
-- reach, and that nothing is special about it. Hands out nothing where it is otherwise. Setting up a large
-- statement is a good part of what it costs, so what the usual case does not need is not here.
-- The row of the lane is written here, so what is read is older than the wait for it: a row that another has taken
-- meanwhile is looked at again when it is locked, and one that came meanwhile is found by the next.
-- Parameters: space, worker, incarnation, lane, seq, memory (µs), not_after, now, turn, lease (µs), want, look, hinted (no
-- more than take_hint.sql allowed), above (only from the lane's floor on: claim_floor.sql); arrays queues, labels.
-- Returns: one row: the time; whether this step is to be executed; if not, whether it is new and comes for nothing
-- (turn.sql); (23rd) what was set; whether the case is the usual one; µs until something is due or a lease ends, if `look`,
-- or 0 if another transaction had locked a pending job, so that fewer than wanted were claimed.
-- Then the jobs in order: as claim.sql from the 4th to the 22nd, but for NULL: the chain that is named after it, until, rank, no
-- upstream; (26th) where its row lies.
WITH
-- include: _clock.sql
, wanted AS MATERIALIZED (
    SELECT CASE WHEN %(hinted)s THEN least(%(want)s, current_setting('backstay.taken')::bigint) ELSE %(want)s END AS n
), mine AS (
    INSERT INTO backstay_job_turn AS turn (space, worker, incarnation, lane, seq, fence, keep_until)
    SELECT %(space)s, %(worker)s, %(incarnation)s, %(lane)s, %(seq)s, greatest(clock.now, last.fence + 1) + %(want)s,
        clock.now + %(memory)s
    FROM clock, wanted, (SELECT max(fence) AS fence FROM backstay_job_turn WHERE space = %(space)s) last
    WHERE clock.now <= %(not_after)s AND wanted.n > 0
    ON CONFLICT (space, worker, incarnation, lane) DO UPDATE SET seq = excluded.seq, finished = '{}',
        keep_until = excluded.keep_until, fence = greatest(turn.fence + %(want)s, excluded.fence)
    WHERE turn.seq < excluded.seq
    RETURNING fence - %(want)s AS base
), near AS MATERIALIZED (
    SELECT CASE WHEN count(*) = 1 AND NOT bool_or(l.special OR l.runs OR coalesce(q.rate_burst, 0) > 0)
        THEN min(l.lane) END AS lane, CASE WHEN %(above)s THEN min(l.floor) ELSE -9223372036854775808 END AS floor
    FROM unnest(%(queues)b) AS g (queue)
    CROSS JOIN LATERAL (SELECT * FROM backstay_job_lane WHERE space = %(space)s AND queue = g.queue OFFSET 0) l
    LEFT JOIN LATERAL (
        SELECT * FROM backstay_job_queue WHERE space = %(space)s AND name = g.queue OFFSET 0) q ON true
    WHERE l.labels <@ %(labels)b AND NOT coalesce(q.paused, false)
), claimed AS (
    UPDATE backstay_job SET state = 'running', fence = greatest(base + nth, last_fence + 1),
        last_fence = greatest(base + nth, last_fence + 1), until = now + %(lease)s, started = now, attempt = attempt + 1,
        worker = %(worker)s, turn = %(turn)s, progress = 0
    FROM (
            SELECT place, row_number() OVER () AS nth FROM (
                SELECT ctid AS place FROM backstay_job
                WHERE lane = (SELECT near.lane FROM near, mine) AND state = 'pending'
                    AND rank >= (SELECT near.floor FROM near)
                ORDER BY rank, id LIMIT (SELECT n FROM wanted) FOR NO KEY UPDATE SKIP LOCKED) held) chosen,
        clock, mine
    WHERE backstay_job.ctid = chosen.place
    RETURNING id, fence, type, queue, args, meta, attempt, retries, snoozes, priority, chain, run, labels, enqueued,
        due, flags, upstream, unique_key, backstay_job.ctid AS whereabouts
),
-- include: _started.sql
, seen AS MATERIALIZED (
    SELECT clock.now, EXISTS (SELECT FROM mine) AS mine, wanted.n <= 0 AND NOT EXISTS (
            SELECT FROM backstay_job_turn
            WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
                AND seq >= %(seq)s) AS vain,
        CASE WHEN current_setting('synchronous_standby_names') = ''
            AND NOT EXISTS (SELECT FROM claimed WHERE attempt > retries)
            THEN set_config('synchronous_commit', 'off', true) END AS lazy,
        (SELECT lane IS NOT NULL FROM near) AS usual,
        CASE WHEN (SELECT count(*) FROM claimed) < wanted.n AND EXISTS (
                SELECT FROM backstay_job
                WHERE lane = (SELECT near.lane FROM near, mine) AND state = 'pending'
                    AND rank >= (SELECT near.floor FROM near) AND id <> ALL (ARRAY(SELECT id FROM claimed)))
            THEN 0
        WHEN %(look)s THEN least(
            (SELECT due FROM backstay_job WHERE space = %(space)s AND state = 'scheduled' ORDER BY due LIMIT 1),
            (SELECT until FROM backstay_job WHERE space = %(space)s AND state = 'running' ORDER BY until LIMIT 1)
            ) - clock.now END AS next_in
    FROM clock, wanted
)
SELECT now, mine, vain, NULL AS id, NULL AS fence, NULL AS type, NULL AS queue, NULL AS args, NULL AS meta,
    NULL AS attempt, NULL AS retries, NULL AS snoozes, NULL AS priority, NULL AS chain, NULL AS run, NULL AS labels,
    NULL AS enqueued, NULL AS due, NULL AS until, NULL AS flags, NULL AS rank, NULL AS upstream, lazy, usual, next_in,
    NULL AS whereabouts
FROM seen
UNION ALL
-- What is the same for all, or follows from the rest, is not said.
SELECT NULL, NULL, NULL, id, fence, type, queue, args, meta, attempt, retries, snoozes, priority, nullif(chain, id), run,
    labels, enqueued, due, NULL, flags, NULL, nullif(upstream, ''), NULL, NULL, NULL, whereabouts
FROM claimed
