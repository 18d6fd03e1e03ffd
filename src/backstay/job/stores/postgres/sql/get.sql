-- Purpose: a job, whether it has ended or not.
-- Parameters: space, id.
-- Returns: the columns of `_seen.sql`, then finished, result, followed_by.
SELECT
-- include: _seen.sql
    , 0::bigint, NULL::bytea, '' FROM backstay_job WHERE space = %(space)s AND id = %(id)s
UNION ALL
SELECT
-- include: _seen.sql
    , finished, result, followed_by FROM backstay_job_done WHERE space = %(space)s AND id = %(id)s
