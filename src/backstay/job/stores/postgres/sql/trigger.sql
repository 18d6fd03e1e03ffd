-- Purpose: jobs that ended are tried again, with all their attempts: blocked, until whoever calls this releases them.
-- Parameters: space, flag, ageing, now, at_once (due now, or as due as before); array ids.
-- Returns: id, flags, run, the state it was in.
WITH
-- include: _clock.sql
, gone AS (
    DELETE FROM backstay_job_done USING (
        SELECT done.tid FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM backstay_job_done WHERE space = %(space)s AND id = n.id OFFSET 0) done) found
    WHERE backstay_job_done.ctid = found.tid
    RETURNING
-- include: _carried.sql
        , last_fence, error, state AS was
), back AS (
    INSERT INTO backstay_job (
        rank, due, attempt, flags, state, space, id, lane, enqueued, started, keep, keep_failed, unique_window,
        rate_interval, progress, priority, retries, snoozes, key_limit, rate_burst, type, queue, labels, chain, run,
        worker, key, bucket, unique_key, unique_scope, condition, upstream, args, meta, last_fence, error)
    SELECT CASE WHEN %(at_once)s THEN now - priority * %(ageing)s::bigint ELSE rank END,
        CASE WHEN %(at_once)s THEN now ELSE due END, 0, flags | %(flag)s, 'blocked', space, id, lane, enqueued, started,
        keep, keep_failed, unique_window, rate_interval, progress, priority, retries, snoozes, key_limit, rate_burst,
        type, queue, labels, chain, run, worker, key, bucket, unique_key, unique_scope, condition, upstream, args, meta,
        last_fence, error
    FROM gone, clock
    RETURNING id, unique_key, unique_scope
), taken AS (
    INSERT INTO backstay_job_unique (space, key, job, until)
    SELECT %(space)s, unique_key, id, 9223372036854775807 FROM back
    WHERE unique_key <> '' AND unique_scope <> 'window' ORDER BY unique_key
    ON CONFLICT (space, key) DO NOTHING
)
SELECT id, flags, run, was FROM gone
