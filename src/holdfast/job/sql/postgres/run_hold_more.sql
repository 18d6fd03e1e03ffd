-- Purpose: hold runs as run_hold.sql does, also those of jobs that this transaction released (release_heard.sql) and handed
-- out (claim.sql). Holds nothing where one of those left something to whoever asks: jobs are held before runs.
-- Parameters: space, now; array ids.
-- Returns: as run_hold.sql.
SELECT run.*, coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
FROM (
    SELECT DISTINCT id FROM (
        SELECT unnest(%(ids)b) COLLATE "C" AS id
        UNION ALL SELECT unnest(nullif(current_setting('holdfast.released', true), '')::text[]) COLLATE "C"
        UNION ALL SELECT unnest(nullif(current_setting('holdfast.claimed', true), '')::text[]) COLLATE "C") a
    WHERE '{-}' <> ALL (ARRAY[
        coalesce(current_setting('holdfast.claimed', true), ''), coalesce(current_setting('holdfast.released', true), '')])
    ORDER BY id) n
CROSS JOIN LATERAL (
    SELECT id, status, started, finished, deadline, timeout, keep, keep_until, events, cancelling, reason, scheduled,
        blocked, pending, running, completed, failed, cancelled, skipped, hard
    FROM holdfast_run WHERE space = %(space)s AND id = n.id FOR NO KEY UPDATE) run
