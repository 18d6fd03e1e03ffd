-- Purpose: hold a lane's memory while more of its step is done. Written, not only locked: see `_my_turn.sql`.
-- Parameters: space, worker, incarnation, lane, now.
-- Returns: the time, the last seq, which of its finishes counted, by place from 1.
UPDATE backstay_job_turn SET keep_until = keep_until
WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
RETURNING coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), seq, finished
