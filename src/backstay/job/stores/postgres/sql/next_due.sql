-- Purpose: how long until something becomes due or a lease ends.
-- Parameters: space, now.
-- Returns: µs, or NULL.
SELECT least(
    (SELECT due FROM backstay_job WHERE space = %(space)s AND state = 'scheduled' ORDER BY due LIMIT 1),
    (SELECT until FROM backstay_job WHERE space = %(space)s AND state = 'running' ORDER BY until LIMIT 1)
    ) - coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
