-- Purpose: jobs of a run, newest first.
-- Parameters: as list_live.sql.
-- Returns: as get.sql.
SELECT * FROM (
    SELECT
-- include: _seen.sql
        , 0::bigint, NULL::bytea, '' FROM holdfast_job WHERE space = %(space)s AND run = %(run)s AND run <> ''
    UNION ALL
    SELECT
-- include: _seen.sql
        , finished, result, followed_by FROM holdfast_job_done
    WHERE space = %(space)s AND run = %(run)s AND run <> ''
) job
WHERE (%(before)s = '' OR id < %(before)s) AND (%(state)s = '' OR state = %(state)s)
    AND (%(queue)s = '' OR queue = %(queue)s) AND (%(type)s = '' OR type = %(type)s)
ORDER BY id DESC LIMIT %(limit)s
