-- Purpose: keys have room: their first parked jobs go back to their lanes. Whoever asks holds the keys.
-- A parked job that another transaction changes meanwhile (watch.sql) is not moved: a second call finds it.
-- Parameters: space, now; arrays keys, limits.
-- Returns: at least one row: how many jobs were to be moved; then id and type of one that was (NULL: none).
WITH
-- include: _clock.sql
, room AS MATERIALIZED (
    SELECT n.key, n.most - (
        SELECT count(*) FROM backstay_job WHERE space = %(space)s AND key = n.key AND key <> '' AND state = 'running'
        ) AS free
    FROM unnest(%(keys)b, %(limits)b) AS n (key, most)
), next AS MATERIALIZED (
    -- Of each lane: who comes next may not have the labels or the queue of the first of all.
    SELECT p.place FROM room CROSS JOIN LATERAL (
        WITH RECURSIVE held (lane) AS (
            (SELECT lane FROM backstay_job WHERE space = %(space)s AND key = room.key AND key <> '' AND state = 'parked'
                ORDER BY lane LIMIT 1)
            UNION ALL
            SELECT (SELECT j.lane FROM backstay_job j WHERE j.space = %(space)s AND j.key = room.key AND j.key <> ''
                AND j.state = 'parked' AND j.lane > held.lane ORDER BY j.lane LIMIT 1)
            FROM held WHERE held.lane IS NOT NULL)
        SELECT lane FROM held WHERE lane IS NOT NULL) l
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM backstay_job j
        WHERE j.space = %(space)s AND j.key = room.key AND j.key <> '' AND j.lane = l.lane AND j.state = 'parked'
        ORDER BY j.rank, j.id LIMIT greatest(room.free, 0)) p
), moved AS (
    UPDATE backstay_job SET state = 'pending' FROM next WHERE backstay_job.ctid = next.place AND state = 'parked'
    RETURNING id, type, lane, queue, labels, bucket, key, flags
),
-- include: _lanes.sql
SELECT chosen.n, moved.id, moved.type FROM (SELECT count(*) AS n FROM next) chosen LEFT JOIN moved ON true
