gone AS (
    DELETE FROM backstay_job USING found
    -- By place, and by nothing else: where the table was empty when this was planned, an index by space looks better.
    WHERE backstay_job.ctid = tid AND id = e_id AND space IS NOT DISTINCT FROM %(space)s AND fence = e_fence
        AND flags & %(care)s = 0 AND until > (SELECT now FROM clock)
        AND (cancel IS NULL OR e_state = 'completed' OR e_error <> '')
    RETURNING
-- include: _carried.sql
        , fence, e_result, e_error, place,
        CASE WHEN e_state = 'failed' AND cancel IS NOT NULL THEN 'cancelled' ELSE e_state END AS e_state
), kept AS (
    INSERT INTO backstay_job_done (
-- include: _carried.sql
        , state, error, last_fence, finished, keep_until, result)
    SELECT
-- include: _carried.sql
        , e_state, e_error, fence, now, now + CASE e_state WHEN 'failed' THEN keep_failed ELSE keep END,
        CASE e_state WHEN 'completed' THEN e_result END
    FROM gone, clock
), memo AS (
    UPDATE backstay_job_turn SET finished = (SELECT coalesce(array_agg(place::integer), '{}') FROM gone)
    WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
        AND xmin = pg_current_xact_id()::xid
)
SELECT place, id, chain, flags FROM gone
