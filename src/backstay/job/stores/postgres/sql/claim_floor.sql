-- Purpose: find out from where on there is something in lanes: claims that follow begin there, and need not step over all
-- that was handed out since the last vacuum. A floor is no later than now: what is enqueued from now on lies above, or
-- lowers it (enqueue_floor.sql). A lane that somebody else is writing to keeps its floor.
-- Parameters: space, now; array queues.
WITH
-- include: _clock.sql
, lanes AS MATERIALIZED (
    SELECT ctid AS place, lane FROM backstay_job_lane WHERE space = %(space)s AND queue = ANY (%(queues)b)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE backstay_job_lane l SET floor = least(clock.now, (
    SELECT rank FROM backstay_job WHERE lane = lanes.lane AND state = 'pending' ORDER BY rank, id LIMIT 1))
FROM lanes, clock WHERE l.ctid = lanes.place
