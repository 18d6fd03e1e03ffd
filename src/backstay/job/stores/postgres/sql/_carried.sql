space, id, lane, rank, due, enqueued, started, keep, keep_failed, unique_window, rate_interval, progress, priority,
attempt, retries, snoozes, flags, key_limit, rate_burst, type, queue, labels, chain, run, worker, key, bucket,
unique_key, unique_scope, condition, upstream, args, meta
