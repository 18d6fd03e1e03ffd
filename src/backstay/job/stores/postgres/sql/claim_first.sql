-- Purpose: hold the first pending jobs of some lanes, the smallest rank first.
-- Parameters: space, want, spare; arrays lanes, groups, busy (concurrency keys to be left alone).
-- Returns: id, lane, key, key_limit, rate_interval, rate_burst, in order.
SELECT j.id, j.lane, j.key, j.key_limit, j.rate_interval, j.rate_burst
FROM (
    SELECT head.tid, head.id, near.place AS grp, head.rank
    FROM unnest(%(lanes)b, %(groups)b) AS near (lane, place) CROSS JOIN LATERAL (
        SELECT ctid AS tid, rank, id FROM backstay_job job
        WHERE job.lane = near.lane AND job.state = 'pending' AND job.key <> ALL(%(busy)b)
        ORDER BY rank, id LIMIT %(want)s + %(spare)s) head
    ORDER BY grp, head.rank, head.id LIMIT %(want)s + %(spare)s) first
JOIN backstay_job j ON j.ctid = first.tid AND j.state = 'pending'
ORDER BY first.grp, first.rank, first.id LIMIT %(want)s FOR NO KEY UPDATE OF j SKIP LOCKED
