-- Purpose: jobs that have ended, newest first.
-- Parameters: space, state, queue, type, run ('': any of them), before ('': from the newest on), limit.
-- Returns: as get.sql.
SELECT
-- include: _seen.sql
    , finished, result, followed_by FROM backstay_job_done
WHERE space = %(space)s AND (%(before)s = '' OR id < %(before)s)
    AND (%(state)s = '' OR state = %(state)s)
    AND (%(queue)s = '' OR queue = %(queue)s) AND (%(type)s = '' OR type = %(type)s)
    AND (%(run)s = '' OR run = %(run)s)
ORDER BY id DESC LIMIT %(limit)s
