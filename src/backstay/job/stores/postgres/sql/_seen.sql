id, type, queue, CASE state WHEN 'parked' THEN 'pending' ELSE state END AS state, args, meta, labels, priority, attempt,
retries, snoozes, chain, run, last_fence, worker, until, enqueued, due, started, progress, cancel IS NOT NULL AS cancel,
error, unique_key, unique_scope, unique_window, key, key_limit, flags, upstream
