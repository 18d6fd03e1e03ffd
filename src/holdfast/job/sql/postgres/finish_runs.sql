-- Purpose: attempts end well that others may wait for, and that may be of runs: all of them, or none, where anything else
-- hangs on one (`care`: flags), a lease is not current, or (if `reaped`) leases that ran out and jobs of runs that are
-- due are left to be seen to with care first.
-- Parameters: space, worker, incarnation, lane, now, care, reaped, count; arrays ids, fences, results.
-- Returns: place (from 1), id, chain, flags, attempt, run, worker of each that ended, in this order.
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
    SELECT ends.*, job.tid FROM ends CROSS JOIN LATERAL (
        SELECT ctid AS tid, fence, flags, until FROM holdfast_job WHERE space = %(space)s AND id = e_id OFFSET 0) job
    WHERE job.fence = e_fence AND job.flags & %(care)s = 0 AND job.until > (SELECT now FROM clock)
), gone AS (
    DELETE FROM holdfast_job USING found
    WHERE holdfast_job.ctid = tid AND fence = e_fence AND flags & %(care)s = 0
        AND (SELECT count(*) FROM found) = %(count)s
    RETURNING
-- include: _carried.sql
        , fence, e_result, place
), kept AS (
    INSERT INTO holdfast_job_done (
-- include: _carried.sql
        , state, last_fence, finished, keep_until, result)
    SELECT
-- include: _carried.sql
        , 'completed', fence, now,
        -- Those of a run go with it.
        CASE WHEN flags & 128 <> 0 THEN 9223372036854775807 ELSE now + keep END, e_result
    FROM gone, clock
), memo AS (
    UPDATE holdfast_job_turn SET finished = (SELECT coalesce(array_agg(place::integer), '{}') FROM gone)
    WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
        AND xmin = pg_current_xact_id()::xid
)
SELECT place, id, chain, flags, attempt, run, worker FROM gone ORDER BY place
