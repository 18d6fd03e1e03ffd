lanes AS (
    INSERT INTO backstay_job_lane (space, lane, queue, labels, bucket, special, runs, used)
    SELECT %(space)s, n.lane, n.queue, string_to_array(n.labels, chr(31)), n.bucket, n.bucket <> '' OR n.key <> '',
        n.flags & 128 <> 0, clock.now
    FROM (SELECT DISTINCT ON (lane) lane, queue, labels, bucket, key, flags FROM moved ORDER BY lane) n, clock
    WHERE NOT EXISTS (
        SELECT FROM backstay_job_lane l WHERE l.space = %(space)s AND l.queue = n.queue AND l.lane = n.lane
            AND l.used > clock.now - 3600000000)
    ON CONFLICT (space, queue, lane) DO UPDATE SET used = excluded.used
)
