-- Purpose: what became of runs. Whoever calls it holds them.
-- Parameters: space; one array for each column.
WITH found AS MATERIALIZED (
    SELECT n.*, run.tid FROM unnest(%(ids)b, %(statuses)b, %(starteds)b, %(finisheds)b, %(deadlines)b, %(keep_untils)b,
            %(events)b, %(cancellings)b, %(reasons)b, %(scheduled)b, %(blocked)b, %(pending)b, %(running)b,
            %(completed)b, %(failed)b, %(cancelled)b, %(skipped)b, %(hard)b)
        AS n (id, status, started, finished, deadline, keep_until, events, cancelling, reason, scheduled, blocked,
            pending, running, completed, failed, cancelled, skipped, hard)
    CROSS JOIN LATERAL (SELECT ctid AS tid FROM backstay_run WHERE space = %(space)s AND id = n.id OFFSET 0) run
)
UPDATE backstay_run run SET status = n.status, started = n.started, finished = n.finished, deadline = n.deadline,
    keep_until = n.keep_until, events = n.events, cancelling = n.cancelling > 0, reason = n.reason,
    scheduled = n.scheduled, blocked = n.blocked, pending = n.pending, running = n.running, completed = n.completed,
    failed = n.failed, cancelled = n.cancelled, skipped = n.skipped, hard = n.hard
FROM found n WHERE run.ctid = n.tid
