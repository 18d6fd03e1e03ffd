-- Purpose: hold a job that has not ended.
-- Parameters: space, id.
-- Returns: its state, its attempt, the time.
SELECT state, attempt, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM backstay_job WHERE space = %(space)s AND id = %(id)s FOR UPDATE
