        (
            SELECT greatest((SELECT now FROM clock), max(turn.fence) + 1) - 1 AS base
            FROM backstay_job_turn turn WHERE turn.space = %(space)s) last
    WHERE backstay_job.ctid = chosen.place
    RETURNING id, fence, type, queue, args, meta, attempt, retries, snoozes, priority, chain, run, labels, enqueued,
        due, until, flags, rank, upstream, unique_key, backstay_job.ctid AS whereabouts
),
-- include: _started.sql
, memo AS (
    UPDATE backstay_job_turn SET fence = (SELECT max(fence) FROM claimed)
    WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
        AND EXISTS (SELECT FROM claimed)
), moves AS (
    SELECT run, 'started' AS kind, %(worker)s AS worker, id, attempt, fence AS nth FROM claimed WHERE flags & 128 <> 0
)
