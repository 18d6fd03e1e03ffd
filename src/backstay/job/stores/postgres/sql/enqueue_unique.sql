-- Purpose: take unique keys for jobs that are new, in one order for all who do; also those whose time is over.
-- Parameters: space, now; arrays keys, ids, windows (0: until the job says so). Of several with one key, the first.
WITH
-- include: _clock.sql
, new AS (
    SELECT DISTINCT ON (n.key) n.key, n.id, n.life
    FROM unnest(%(keys)b, %(ids)b, %(windows)b) WITH ORDINALITY AS n (key, id, life, place)
    WHERE NOT EXISTS (SELECT FROM backstay_job WHERE space = %(space)s AND id = n.id)
        AND NOT EXISTS (SELECT FROM backstay_job_done WHERE space = %(space)s AND id = n.id)
    ORDER BY n.key, n.place
)
INSERT INTO backstay_job_unique AS taken (space, key, job, until)
SELECT %(space)s, new.key, new.id, CASE WHEN new.life > 0 THEN clock.now + new.life ELSE 9223372036854775807 END
FROM new, clock
ON CONFLICT (space, key) DO UPDATE SET job = excluded.job, until = excluded.until
WHERE taken.until <= (SELECT now FROM clock)
