-- Purpose: end attempts for good, where nothing else hangs on them (`care`: flags of those that it leaves alone; also
-- those whose cancellation was wanted and that say no reason of their own).
-- Parameters: space, worker, incarnation, lane, now, care; arrays ids, fences, states, results, errors.
-- Returns: place (from 1), id, chain, flags of each that ended. The others are stale, late, or need care.
WITH
-- include: _clock.sql
, ends AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)b, %(fences)b, %(states)b, %(results)b, %(errors)b)
        WITH ORDINALITY AS e (e_id, e_fence, e_state, e_result, e_error, place)
    WHERE
-- include: _my_turn.sql
), found AS MATERIALIZED (
    -- One by one and by id: a join might read all jobs, and by state it would meet the index of leases, full of the dead.
    SELECT ends.*, job.tid FROM ends CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM holdfast_job WHERE space = %(space)s AND id = e_id OFFSET 0) job
), gone AS (
    DELETE FROM holdfast_job USING found
    WHERE holdfast_job.ctid = tid AND fence = e_fence AND flags & %(care)s = 0 AND until > (SELECT now FROM clock)
        AND (cancel IS NULL OR e_state = 'completed' OR e_error <> '')
    RETURNING
-- include: _carried.sql
        , fence, e_result, e_error, place,
        CASE WHEN e_state = 'failed' AND cancel IS NOT NULL THEN 'cancelled' ELSE e_state END AS e_state
), kept AS (
    INSERT INTO holdfast_job_done (
-- include: _carried.sql
        , state, error, last_fence, finished, keep_until, result)
    SELECT
-- include: _carried.sql
        , e_state, e_error, fence, now, now + CASE e_state WHEN 'failed' THEN keep_failed ELSE keep END,
        CASE e_state WHEN 'completed' THEN e_result END
    FROM gone, clock
), memo AS (
    UPDATE holdfast_job_turn SET finished = (SELECT coalesce(array_agg(place::integer), '{}') FROM gone)
    WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
        AND xmin = pg_current_xact_id()::xid
)
SELECT place, id, chain, flags FROM gone
