-- Purpose: jobs of a run, newest first. Each table is read from where the page begins, and no further than it goes: a run
-- of thousands has many pages.
-- Parameters: as list_live.sql.
-- Returns: as get.sql.
SELECT * FROM (
    (SELECT
-- include: _seen.sql
        , 0::bigint, NULL::bytea, '' FROM backstay_job
    WHERE space = %(space)s AND run = %(run)s AND run <> '' AND (%(before)s = '' OR id < %(before)s)
        AND id <= CASE WHEN %(before)s <> '' THEN %(before)s ELSE (
            SELECT id FROM backstay_job WHERE space = %(space)s AND run = %(run)s AND run <> '' ORDER BY id DESC LIMIT 1) END
        AND (%(state)s = '' OR CASE state WHEN 'parked' THEN 'pending' ELSE state END = %(state)s)
        AND (%(queue)s = '' OR queue = %(queue)s) AND (%(type)s = '' OR type = %(type)s)
    ORDER BY id DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT
-- include: _seen.sql
        , finished, result, followed_by FROM backstay_job_done
    WHERE space = %(space)s AND run = %(run)s AND run <> '' AND (%(before)s = '' OR id < %(before)s)
        AND id <= CASE WHEN %(before)s <> '' THEN %(before)s ELSE (
            SELECT id FROM backstay_job_done
            WHERE space = %(space)s AND run = %(run)s AND run <> '' ORDER BY id DESC LIMIT 1) END
        AND (%(state)s = '' OR state = %(state)s)
        AND (%(queue)s = '' OR queue = %(queue)s) AND (%(type)s = '' OR type = %(type)s)
    ORDER BY id DESC LIMIT %(limit)s)
) job
ORDER BY id DESC LIMIT %(limit)s
