-- Purpose: delete the oldest completed jobs above a number.
-- Parameters: space, keep, limit.
-- Returns: how many.
WITH edge AS MATERIALIZED (
    SELECT id FROM holdfast_job_done WHERE space = %(space)s AND state = 'completed'
    ORDER BY id DESC OFFSET %(keep)s LIMIT 1
), chosen AS MATERIALIZED (
    SELECT ctid AS tid FROM holdfast_job_done
    WHERE space = %(space)s AND state = 'completed' AND id <= (SELECT id FROM edge)
    ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
-- include: _forget.sql
