-- Purpose: jobs that come before others, because of their priority or the moment they are due, lower the floors of their
-- lanes (claim_floor.sql).
-- Parameters: space, now, ageing; arrays queues, lanes, dues, delays, priorities.
WITH
-- include: _clock.sql
, lowest AS MATERIALIZED (
    SELECT n.queue, n.lane,
        min(CASE WHEN n.due > 0 THEN n.due ELSE clock.now + n.delay END - n.priority * %(ageing)s::bigint) AS rank
    FROM unnest(%(queues)b, %(lanes)b, %(dues)b, %(delays)b, %(priorities)b)
            AS n (queue, lane, due, delay, priority),
        clock
    GROUP BY 1, 2
)
UPDATE backstay_job_lane l SET floor = lowest.rank
FROM lowest
WHERE l.space = %(space)s AND l.queue = lowest.queue AND l.lane = lowest.lane AND l.floor > lowest.rank
