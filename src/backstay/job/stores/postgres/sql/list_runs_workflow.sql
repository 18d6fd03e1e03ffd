-- Purpose: runs of one workflow, newest first.
-- Parameters: space, workflow, status, before ('': from the newest on), limit.
-- Returns: the columns of `_run.sql`.
SELECT
-- include: _run.sql
FROM backstay_run
WHERE space = %(space)s AND workflow = %(workflow)s AND (%(status)s = '' OR status = %(status)s) AND (%(before)s = '' OR id < %(before)s)
ORDER BY workflow DESC, id DESC LIMIT %(limit)s
