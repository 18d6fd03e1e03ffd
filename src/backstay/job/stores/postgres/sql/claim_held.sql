-- Purpose: whether there is more to be had in some lanes, which somebody else held while we took the rest.
-- Parameters: array lanes.
-- Returns: true or false.
SELECT EXISTS (
    SELECT FROM unnest(%(lanes)b) AS near (lane) CROSS JOIN LATERAL (
        SELECT FROM backstay_job job WHERE job.lane = near.lane AND job.state = 'pending' LIMIT 1) head)
