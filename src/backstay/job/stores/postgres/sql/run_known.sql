-- Purpose: which of these runs there are.
-- Parameters: space; array ids.
-- Returns: id, whether it is being cancelled, why, the time.
SELECT run.id, run.cancelling AND run.finished = 0, run.reason,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
    SELECT id, cancelling, finished, reason FROM backstay_run WHERE space = %(space)s AND id = n.id OFFSET 0) run
