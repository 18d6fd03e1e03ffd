-- Purpose: jobs that run, newest first. There are as many as workers have hands.
-- Parameters: as list_live.sql.
-- Returns: as get.sql.
SELECT
-- include: _seen.sql
    , 0::bigint, NULL::bytea, '' FROM backstay_job
WHERE space = %(space)s AND state = 'running' AND until > 0 AND (%(before)s = '' OR id < %(before)s)
    AND (%(queue)s = '' OR queue = %(queue)s) AND (%(type)s = '' OR type = %(type)s)
    AND (%(run)s = '' OR run = %(run)s)
ORDER BY id DESC LIMIT %(limit)s
