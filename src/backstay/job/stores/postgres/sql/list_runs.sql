-- Purpose: runs newest first.
-- Parameters: space, workflow, status, before ('': from the newest on), limit.
-- Returns: the columns of `_run.sql`.
SELECT
-- include: _run.sql
FROM backstay_run
WHERE space = %(space)s AND (%(before)s = '' OR id < %(before)s)
ORDER BY id DESC LIMIT %(limit)s
