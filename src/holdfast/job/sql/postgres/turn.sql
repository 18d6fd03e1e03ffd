-- Purpose: begin a step. Later statements of its transaction act only if this one wrote the row (`_my_turn.sql`).
-- Parameters: space, worker, incarnation, lane, seq, memory (µs), not_after, now.
-- Returns: the time, and whether this step is to be executed. If not, it was before, or is too old, or too late.
WITH
-- include: _clock.sql
, mine AS (
    INSERT INTO holdfast_job_turn AS turn (space, worker, incarnation, lane, seq, fence, keep_until)
    SELECT %(space)s, %(worker)s, %(incarnation)s, %(lane)s, %(seq)s, 0, clock.now + %(memory)s FROM clock
    WHERE clock.now <= %(not_after)s
    ON CONFLICT (space, worker, incarnation, lane)
    DO UPDATE SET seq = excluded.seq, finished = '{}', keep_until = excluded.keep_until
    WHERE turn.seq < excluded.seq
    RETURNING seq
)
SELECT clock.now, EXISTS (SELECT FROM mine) FROM clock
