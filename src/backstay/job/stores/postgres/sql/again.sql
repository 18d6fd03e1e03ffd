-- Purpose: attempts end, and their jobs will be tried again. Whoever calls it holds them.
-- Parameters: space, now, ageing; arrays ids, delays (µs; below 0: as due as before), attempts, snoozes, errors.
-- Returns: id, type, key, key_limit, state, attempt, flags, run.
WITH
-- include: _clock.sql
, later AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)b, %(delays)b, %(attempts)b, %(snoozes)b, %(errors)b)
        AS l (l_id, l_delay, l_attempt, l_snoozes, l_error)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = l_id OFFSET 0) job
), moved AS (
    UPDATE backstay_job SET
        state = CASE WHEN l_delay > 0 THEN 'scheduled' ELSE 'pending' END,
        due = CASE WHEN l_delay < 0 THEN due ELSE now + l_delay END,
        rank = CASE WHEN l_delay < 0 THEN rank ELSE now + l_delay - priority * %(ageing)s::bigint END,
        attempt = l_attempt, snoozes = l_snoozes, error = CASE l_error WHEN '' THEN error ELSE l_error END,
        fence = 0, until = 0, worker = '', turn = 0, progress = 0
    FROM later, clock WHERE backstay_job.ctid = tid
    RETURNING id, type, state, lane, queue, labels, bucket, key, key_limit, attempt, flags, run
),
-- include: _lanes.sql
SELECT id, type, key, key_limit, state, attempt, flags, run FROM moved
