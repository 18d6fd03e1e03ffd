-- Purpose: jobs end, whatever they were doing. Whoever calls it holds them, and sees to what hangs on them.
-- Parameters: space, now; arrays ids, states, results, errors, followed_by.
-- Returns: id, chain, flags, state, result, key, key_limit, unique_key, unique_scope.
WITH
-- include: _clock.sql
, ends AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)b, %(states)b, %(results)b, %(errors)b, %(followed_by)b)
        AS e (e_id, e_state, e_result, e_error, e_followed_by)
), found AS MATERIALIZED (
    SELECT ends.*, job.tid FROM ends CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM holdfast_job WHERE space = %(space)s AND id = e_id OFFSET 0) job
), gone AS (
    DELETE FROM holdfast_job USING found WHERE holdfast_job.ctid = tid
    RETURNING
-- include: _carried.sql
        , last_fence, e_state, e_result, CASE e_error WHEN '' THEN CASE e_state WHEN 'completed' THEN '' ELSE error END
        ELSE e_error END AS error, e_followed_by
), kept AS (
    INSERT INTO holdfast_job_done (
-- include: _carried.sql
        , state, error, last_fence, finished, keep_until, result, followed_by)
    SELECT
-- include: _carried.sql
        , e_state, error, last_fence, now, now + CASE e_state WHEN 'failed' THEN keep_failed ELSE keep END,
        CASE e_state WHEN 'completed' THEN e_result END, e_followed_by
    FROM gone, clock
)
SELECT id, chain, flags, e_state, e_result, key, key_limit, unique_key, unique_scope FROM gone
