-- Purpose: store jobs, but for those that are there already or whose unique key belongs to another.
-- Parameters: space, now, ageing, follows (the next of a chain: see enqueue_keyless.sql); one array for each
-- column.
-- Returns: id, state, type of each that is new.
WITH
-- include: _clock.sql
INSERT INTO backstay_job (space, id, type, queue, labels, lane, args, meta, priority, due, rank, enqueued, retries,
    chain, run, keep, keep_failed, flags, unique_key, unique_scope, unique_window, key, key_limit, bucket,
    rate_interval, rate_burst, condition, upstream, state)
SELECT %(space)s, n.id, n.type, n.queue, n.labels, n.lane, n.args, n.meta, n.priority, t.due,
    t.due - n.priority * %(ageing)s::bigint, clock.now, n.retries, n.chain, n.run, n.keep, n.keep_failed, n.flags,
    n.unique_key, n.unique_scope, n.unique_window, n.key, n.key_limit, n.bucket, n.rate_interval, n.rate_burst,
    n.condition, n.upstream,
    CASE WHEN n.flags & 64 <> 0 THEN 'blocked' WHEN t.due > clock.now THEN 'scheduled' ELSE 'pending' END
FROM unnest(%(ids)b, %(types)b, %(queues)b, %(labels)b, %(lanes)b, %(args)b, %(metas)b, %(priorities)b, %(dues)b,
        %(delays)b, %(retries)b, %(chains)b, %(runs)b, %(keeps)b, %(keeps_failed)b, %(flags)b, %(unique_keys)b,
        %(unique_scopes)b, %(unique_windows)b, %(keys)b, %(key_limits)b, %(buckets)b, %(rate_intervals)b,
        %(rate_bursts)b, %(conditions)b, %(upstreams)b)
    AS n (id, type, queue, labels, lane, args, meta, priority, due, delay, retries, chain, run, keep, keep_failed,
        flags, unique_key, unique_scope, unique_window, key, key_limit, bucket, rate_interval, rate_burst, condition,
        upstream),
    clock, LATERAL (SELECT CASE WHEN n.due > 0 THEN n.due ELSE clock.now + n.delay END AS due) t
WHERE %(follows)s OR n.unique_key = '' OR EXISTS (
    SELECT FROM backstay_job_unique u WHERE u.space = %(space)s AND u.key = n.unique_key AND u.job = n.id)
ON CONFLICT (space, id) DO NOTHING
RETURNING id, state, type
