-- Purpose: jobs in a state that has an index of its own (failed, cancelled, skipped), newest first.
-- Parameters: as list_done.sql.
-- Returns: as get.sql.
SELECT
-- include: _seen.sql
    , finished, result, followed_by FROM backstay_job_done
WHERE space = %(space)s AND state = %(state)s AND state <> 'completed' AND (%(before)s = '' OR id < %(before)s)
    AND (%(queue)s = '' OR queue = %(queue)s) AND (%(type)s = '' OR type = %(type)s)
    AND (%(run)s = '' OR run = %(run)s)
ORDER BY state DESC, id DESC LIMIT %(limit)s
