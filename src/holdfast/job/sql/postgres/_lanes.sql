lanes AS (
    INSERT INTO holdfast_job_lane (space, lane, queue, labels, bucket, special, used)
    SELECT DISTINCT ON (moved.lane) %(space)s, moved.lane, moved.queue, string_to_array(moved.labels, chr(31)),
        moved.bucket, moved.bucket <> '' OR moved.key <> '', clock.now
    FROM moved, clock
    WHERE NOT EXISTS (
        SELECT FROM holdfast_job_lane l WHERE l.space = %(space)s AND l.queue = moved.queue AND l.lane = moved.lane
            AND l.used > clock.now - 3600000000)
    ORDER BY moved.lane
    ON CONFLICT (space, queue, lane) DO UPDATE SET used = excluded.used
)
