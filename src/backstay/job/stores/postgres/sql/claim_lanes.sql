-- Purpose: claim where rates and concurrency keys apply, first part: the lanes in reach.
-- Parameters: space, now; arrays queues, groups, labels.
-- Returns: the time, lane, group, queue, bucket, the queue's interval and burst (0: no rate), whether a limit applies.
WITH
-- include: _clock.sql
SELECT clock.now, l.lane, g.place, l.queue, l.bucket, coalesce(q.rate_interval, 0), coalesce(q.rate_burst, 0),
    l.special OR coalesce(q.rate_burst, 0) > 0
FROM unnest(%(queues)b, %(groups)b) AS g (queue, place)
CROSS JOIN LATERAL (SELECT * FROM backstay_job_lane WHERE space = %(space)s AND queue = g.queue OFFSET 0) l
LEFT JOIN LATERAL (SELECT * FROM backstay_job_queue WHERE space = %(space)s AND name = g.queue OFFSET 0) q ON true
CROSS JOIN clock
WHERE l.labels <@ %(labels)b AND NOT coalesce(q.paused, false)
    AND EXISTS (SELECT FROM backstay_job j WHERE j.lane = l.lane AND j.state = 'pending')
