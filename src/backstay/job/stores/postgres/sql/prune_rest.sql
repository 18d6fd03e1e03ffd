-- Purpose: forget what jobs leave around: old turns, unique keys whose window is over, lanes that nobody used for a day,
-- workers not heard of for a day, rates that have long recovered.
-- Parameters: space, now.
WITH
-- include: _clock.sql
, turns AS (
    DELETE FROM backstay_job_turn WHERE space = %(space)s AND keep_until < (SELECT now FROM clock)
        AND fence < (SELECT max(fence) FROM backstay_job_turn WHERE space = %(space)s)
), keys AS (
    DELETE FROM backstay_job_unique WHERE space = %(space)s AND until <= (SELECT now FROM clock)
), lanes AS (
    -- Whoever makes a job pending refreshes a lane that was not used for an hour: no transaction lasts a day.
    DELETE FROM backstay_job_lane l WHERE l.space = %(space)s AND l.used < (SELECT now FROM clock) - 86400000000
        AND NOT EXISTS (SELECT FROM backstay_job j WHERE j.lane = l.lane AND j.state = 'pending')
), workers AS (
    DELETE FROM backstay_job_worker WHERE space = %(space)s AND beat < (SELECT now FROM clock) - 86400000000
)
DELETE FROM backstay_job_rate WHERE space = %(space)s AND "at" < (SELECT now FROM clock) - 86400000000
