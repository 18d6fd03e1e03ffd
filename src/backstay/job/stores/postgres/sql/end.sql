-- Purpose: jobs end, whatever they were doing. Whoever calls it holds them, and sees to what hangs on them.
-- Parameters: space, now; arrays ids, states, results, errors, followed_by, blamed (0 or 1).
-- Returns: id, chain, flags, key, key_limit, unique_key, the state it was in, attempt, run.
WITH
-- include: _clock.sql
, ends AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)b, %(states)b, %(results)b, %(errors)b, %(followed_by)b, %(blamed)b)
        AS e (e_id, e_state, e_result, e_error, e_followed_by, e_blamed)
), found AS MATERIALIZED (
    SELECT ends.*, job.tid FROM ends CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = e_id OFFSET 0) job
), gone AS (
    DELETE FROM backstay_job USING found WHERE backstay_job.ctid = tid
    RETURNING
-- include: _carried.sql
        , last_fence, e_state, e_result, CASE e_error WHEN '' THEN CASE e_state WHEN 'completed' THEN '' ELSE error END
        ELSE e_error END AS error, e_followed_by, e_blamed, state AS was
), kept AS (
    INSERT INTO backstay_job_done (
-- include: _carried.sql
        , state, error, last_fence, finished, keep_until, result, followed_by, blamed)
    SELECT
-- include: _carried.sql
        , e_state, error, last_fence, now, 
        -- Those of a run go with it.
        CASE WHEN flags & 128 <> 0 THEN 9223372036854775807 WHEN e_state = 'failed' THEN now + keep_failed
            ELSE now + keep END,
        CASE e_state WHEN 'completed' THEN e_result END, e_followed_by, e_blamed > 0
    FROM gone, clock
)
SELECT id, chain, flags, key, key_limit, unique_key, was, attempt, run FROM gone
