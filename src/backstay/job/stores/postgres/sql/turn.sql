-- Purpose: begin a step. Later statements of its transaction act only if this one wrote the row (`_my_turn.sql`).
-- Parameters: space, worker, incarnation, lane, seq, memory (µs), not_after, now, hinted (it comes for nothing but what
-- take_hint.sql allowed).
-- Returns: the time, and whether this step is to be executed. If not, it was before, or is too old, or too late; or
-- (third) it is new, and comes for nothing.
WITH
-- include: _clock.sql
, vain AS MATERIALIZED (
    SELECT CASE WHEN %(hinted)s THEN current_setting('backstay.taken')::bigint = 0 ELSE false END AS so
), mine AS (
    INSERT INTO backstay_job_turn AS turn (space, worker, incarnation, lane, seq, fence, keep_until)
    SELECT %(space)s, %(worker)s, %(incarnation)s, %(lane)s, %(seq)s, 0, clock.now + %(memory)s FROM clock
    WHERE clock.now <= %(not_after)s AND NOT (SELECT so FROM vain)
    ON CONFLICT (space, worker, incarnation, lane)
    DO UPDATE SET seq = excluded.seq, finished = '{}', keep_until = excluded.keep_until
    WHERE turn.seq < excluded.seq
    RETURNING seq
)
SELECT clock.now, EXISTS (SELECT FROM mine), vain.so AND NOT EXISTS (
    SELECT FROM backstay_job_turn WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s
        AND lane = %(lane)s AND seq >= %(seq)s)
FROM clock, vain
