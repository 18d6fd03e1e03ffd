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
        SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = e_id OFFSET 0) job
),
-- include: _finish.sql
