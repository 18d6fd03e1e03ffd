-- Purpose: make sure that claims find these lanes.
-- Parameters: space, now; arrays lanes, queues, labels (joined by chr(31)), buckets, specials, runs (0 or 1).
WITH
-- include: _clock.sql
INSERT INTO backstay_job_lane (space, lane, queue, labels, bucket, special, runs, used)
SELECT %(space)s, n.lane, n.queue, string_to_array(n.labels, chr(31)), n.bucket, n.special > 0, n.runs > 0, clock.now
FROM unnest(%(lanes)b, %(queues)b, %(labels)b, %(buckets)b, %(specials)b, %(runs)b)
        AS n (lane, queue, labels, bucket, special, runs),
    clock
WHERE NOT EXISTS (
    SELECT FROM backstay_job_lane l WHERE l.space = %(space)s AND l.queue = n.queue AND l.lane = n.lane
        AND l.used > clock.now - 3600000000)
ORDER BY n.lane
ON CONFLICT (space, queue, lane) DO UPDATE SET used = excluded.used
