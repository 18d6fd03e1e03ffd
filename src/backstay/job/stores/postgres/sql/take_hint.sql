-- Purpose: take from the counter of an announcement for the step that follows on this session (turn.sql, claim.sql), in a
-- transaction of its own: whoever comes at the same time does not wait for the claim. `local`: in the same transaction,
-- on a session that is not ours.
-- Nothing is taken for a step that was executed before.
-- Parameters: space, worker, incarnation, lane, seq, hint, n (how many are wanted in all), more (on top of what was taken for this step before), local, now.
-- Returns: how many the step may have. Where there is no counter, as many as it wants: it looks for itself.
WITH
-- include: _clock.sql
, had AS MATERIALIZED (
    -- Nobody waits for it on disk: what a crash takes away was a hint.
    SELECT CASE WHEN NOT %(local)s THEN set_config('synchronous_commit', 'off', true) END, CASE WHEN %(more)s THEN current_setting('backstay.taken')::bigint ELSE 0 END AS n
), before AS MATERIALIZED (
    SELECT remaining FROM backstay_hint_counter
    WHERE hint = %(hint)s AND keep_until > (SELECT now FROM clock) AND NOT EXISTS (
        SELECT FROM backstay_job_turn WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s
            AND lane = %(lane)s AND seq >= %(seq)s)
    FOR UPDATE
), taken AS (
    UPDATE backstay_hint_counter SET remaining = backstay_hint_counter.remaining - least(before.remaining, %(n)s - had.n)
    FROM before, had WHERE hint = %(hint)s AND before.remaining > 0 AND had.n < %(n)s
    RETURNING least(before.remaining, %(n)s - had.n) AS n
)
SELECT set_config('backstay.taken', (CASE WHEN EXISTS (SELECT FROM before) THEN had.n + coalesce((SELECT n FROM taken), 0)
    ELSE %(n)s END)::text, %(local)s) FROM had
