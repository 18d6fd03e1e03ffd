-- Purpose: delete the oldest completed jobs above a number. Those of runs neither go nor count.
-- Parameters: space, keep, limit.
-- Returns: how many.
WITH edge AS MATERIALIZED (
    SELECT id FROM backstay_job_done WHERE space = %(space)s AND state = 'completed' AND flags & 128 = 0
    ORDER BY id DESC OFFSET %(keep)s LIMIT 1
), chosen AS MATERIALIZED (
    SELECT ctid AS tid FROM backstay_job_done
    WHERE space = %(space)s AND state = 'completed' AND flags & 128 = 0 AND id <= (SELECT id FROM edge)
    ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
-- include: _forget.sql
