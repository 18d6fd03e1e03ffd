-- Purpose: leases that ran out: their jobs become pending again, with the cause. Left to whoever asks: those that have
-- no attempt left, are to be cancelled, or on which something else hangs (`care`).
-- Parameters: space, worker ('': nobody's step), incarnation, lane, limit, care, now; cause_before, cause_between: the cause as msgpack, but for attempt and time.
-- Returns: id, type, fence, and whether it is pending now.
WITH
-- include: _clock.sql
, late AS MATERIALIZED (
    SELECT ctid AS place, id, type, fence, attempt <= retries AND cancel IS NULL AND flags & %(care)s = 0 AS plain
    FROM backstay_job
    WHERE space = %(space)s AND state = 'running' AND until <= (SELECT now FROM clock) AND (%(worker)s = '' OR
-- include: _my_turn.sql
    )
    ORDER BY until, id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
    UPDATE backstay_job job SET state = 'pending', fence = 0, until = 0, worker = '', turn = 0, progress = 0,
        error = %(cause_before)b || int4send(job.attempt) || %(cause_between)b || int8send(clock.now)
    FROM late, clock WHERE job.ctid = late.place AND late.plain
    RETURNING job.id, job.type, late.fence, job.lane, job.queue, job.labels, job.bucket, job.key, job.flags
),
-- include: _lanes.sql
SELECT id, type, fence, true FROM moved UNION ALL SELECT id, type, fence, false FROM late WHERE NOT plain
