-- Purpose: runs count what this transaction ended, released and handed out (settings: `_moved.sql`), and tell of it, as run_transitions.py
-- does. After run_grip.sql, which holds them. Where it takes more care, because somebody has cancelled or ended one
-- meanwhile, or one who starts because of a failure has come to wait meanwhile, all of the transaction is undone: it
-- divides by zero, and the step is begun anew, with care.
-- Parameters: space, now, largest (events of one row).
-- Returns: at least one row: the run (NULL: none), the number of its last event, whether it has just ended.
WITH
-- include: _clock.sql
,
-- include: _moves.sql
, sure AS MATERIALIZED (
    SELECT 1 / (coalesce(current_setting('backstay.released', true), '') <> '{-}')::integer
), sums AS (
    SELECT run, sum(cardinality(ids)) AS said,
        coalesce(sum(cardinality(ids)) FILTER (WHERE kind = 'completed'), 0) AS completed,
        coalesce(sum(cardinality(ids)) FILTER (WHERE kind = 'ready'), 0) AS ready,
        coalesce(sum(cardinality(ids)) FILTER (WHERE kind = 'scheduled'), 0) AS scheduled,
        coalesce(sum(cardinality(ids)) FILTER (WHERE kind = 'started'), 0) AS started
    FROM moves GROUP BY run
), runs AS MATERIALIZED (
    SELECT r.tid, r.id, r.events, r.status, r.hard, r.cancelled, r.keep, sums.said,
        CASE WHEN r.started = 0 AND sums.started > 0 THEN clock.now ELSE r.started END AS started,
        sums.started > 0 AS moving,
        r.scheduled + sums.scheduled AS scheduled,
        r.blocked - sums.scheduled - sums.ready AS blocked,
        r.pending + sums.ready - sums.started AS pending,
        r.running + sums.started - sums.completed AS running,
        r.completed + sums.completed AS completed,
        r.scheduled + r.blocked + r.pending + r.running - sums.completed = 0 AS over
    FROM clock, sums CROSS JOIN LATERAL (
        SELECT ctid AS tid, * FROM backstay_run WHERE space = %(space)s AND id = sums.run OFFSET 0) r
    WHERE 1 / (NOT r.cancelling AND r.status IN ('queued', 'running'))::integer = 1
), become AS MATERIALIZED (
    -- The table of run_status.py. Of a run whose cancellation is requested, the division above has undone all of it.
    SELECT *, CASE WHEN over THEN CASE WHEN hard > 0 THEN 'failure' WHEN cancelled > 0 THEN 'cancelled' ELSE 'success' END
        WHEN moving THEN 'running' ELSE status END AS becomes
    FROM runs
), stored AS (
    UPDATE backstay_run run SET status = n.becomes, started = n.started, scheduled = n.scheduled, blocked = n.blocked,
        pending = n.pending, running = n.running, completed = n.completed, events = n.events + n.said + n.over::integer,
        finished = CASE WHEN over THEN clock.now ELSE run.finished END,
        keep_until = CASE WHEN over THEN least(n.keep, 9223372036854775807 - clock.now) + clock.now ELSE run.keep_until END
    FROM become n, clock WHERE run.ctid = n.tid
), told AS (
    SELECT run, stage, kind, worker, ids, attempts, '' AS why FROM moves
    UNION ALL
    SELECT id, 4, 'run_finished', '', '{""}', '{0}', becomes FROM become WHERE over
), placed AS (
    SELECT *, cardinality(ids) AS n,
        sum(cardinality(ids)) OVER (PARTITION BY run ORDER BY stage, kind, worker)::bigint - cardinality(ids) AS before
    FROM told
), pieces AS MATERIALIZED (
    -- Not grouped before it is a text: all ids would be carried along with each.
    SELECT run, part, stage, kind, worker, l - f + 1 AS n, json_build_array(kind, worker, ids[f:l],
        CASE WHEN cardinality(attempts) > 1 THEN attempts[f:l] ELSE attempts END, ARRAY[why])::text AS doc
    FROM placed CROSS JOIN LATERAL generate_series(before / %(largest)s, (before + n - 1) / %(largest)s) part
    CROSS JOIN LATERAL (
        SELECT (greatest(part * %(largest)s - before, 0) + 1)::integer AS f,
            least((part + 1) * %(largest)s - before, n)::integer AS l) cut
), parts AS (
    SELECT run, part, '[' || string_agg(doc, ',' ORDER BY stage, kind, worker) || ']' AS doc, sum(n) AS n
    FROM pieces GROUP BY run, part
), written AS (
    INSERT INTO backstay_run_event (mark, space, run, first, last, "at", doc)
    SELECT
        -- As in run_tell.sql.
        greatest((pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8, pg_current_xact_id()),
        %(space)s, parts.run, runs.events + part * %(largest)s + 1, runs.events + part * %(largest)s + parts.n, clock.now,
        convert_to(parts.doc, 'UTF8')
    FROM parts JOIN runs ON runs.id = parts.run, clock
    ORDER BY parts.run, part
)
SELECT become.id, become.events + become.said + become.over::integer, become.over
FROM sure LEFT JOIN become ON true
