-- Purpose: attempts end well that others may wait for, and that may be of runs: all of them, or none, where anything else
-- hangs on one (`care`: flags), a lease is not current, its run is over or to be cancelled, somebody waits for it who starts
-- because of a failure, or (if `reaped`) leases that ran out and jobs of runs that are due are left to be seen to with
-- care first. What comes behind it in its transaction is told in settings: the chains that others may wait for and
-- their last jobs, and what moved (`_moved.sql`).
-- Parameters: space, worker, incarnation, lane, now, care, reaped, count; arrays ids, fences, results.
-- Returns: place (from 1), id, chain, flags of each that ended.
WITH
-- include: _clock.sql
, ends AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)b, %(fences)b, %(results)b) WITH ORDINALITY AS e (e_id, e_fence, e_result, place)
    WHERE
-- include: _my_turn.sql
        AND NOT (%(reaped)s AND
-- include: _late.sql
        )
), found AS MATERIALIZED (
    SELECT ends.*, job.tid, job.flags AS e_flags, job.chain AS e_chain, job.run AS e_run FROM ends CROSS JOIN LATERAL (
        SELECT ctid AS tid, fence, flags, until, chain, run
        FROM backstay_job WHERE space = %(space)s AND id = e_id OFFSET 0) job
    WHERE job.fence = e_fence AND job.flags & %(care)s = 0 AND job.until > (SELECT now FROM clock)
), common AS MATERIALIZED (
    SELECT (SELECT count(*) FROM found) = %(count)s AND NOT EXISTS (
        SELECT FROM (SELECT DISTINCT e_run FROM found WHERE e_flags & 128 <> 0) mine CROSS JOIN LATERAL (
            SELECT FROM backstay_run WHERE space = %(space)s AND id = e_run
                AND (cancelling OR status NOT IN ('queued', 'running')) OFFSET 0) run
    ) AND NOT EXISTS (
        SELECT FROM found CROSS JOIN LATERAL (
            SELECT FROM backstay_job_after
            WHERE space = %(space)s AND chain BETWEEN e_chain AND e_chain AND NOT ended AND doubts
            ORDER BY chain, job OFFSET 0) a
        WHERE e_flags & 4 <> 0) AS so
), gone AS (
    DELETE FROM backstay_job USING found
    WHERE backstay_job.ctid = tid AND fence = e_fence AND flags & %(care)s = 0
        AND (SELECT so FROM common)
    RETURNING
-- include: _carried.sql
        , fence, e_result, place
), kept AS (
    INSERT INTO backstay_job_done (
-- include: _carried.sql
        , state, last_fence, finished, keep_until, result)
    SELECT
-- include: _carried.sql
        , 'completed', fence, now,
        -- Those of a run go with it.
        CASE WHEN flags & 128 <> 0 THEN 9223372036854775807 ELSE now + keep END, e_result
    FROM gone, clock
), memo AS (
    UPDATE backstay_job_turn SET finished = (SELECT coalesce(array_agg(place::integer), '{}') FROM gone)
    WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
        AND xmin = pg_current_xact_id()::xid
), moves AS (
    SELECT run, 'completed' AS kind, worker, id, attempt, place AS nth FROM gone WHERE flags & 128 <> 0
), known AS MATERIALIZED (
    SELECT set_config('backstay.over', coalesce(array_agg(chain)::text, ''), true),
        set_config('backstay.over_with', coalesce(array_agg(id)::text, ''), true),
        set_config('backstay.ended', (
-- include: _moved.sql
        ), true)
    FROM gone WHERE flags & 4 <> 0
)
SELECT place, id, chain, flags FROM known, gone
