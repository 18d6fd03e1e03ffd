-- Purpose: delete jobs that ended in a state, oldest first. Those of runs go with them.
-- Parameters: space, state, queue ('': all), limit.
-- Returns: how many.
WITH chosen AS MATERIALIZED (
    SELECT ctid AS tid FROM backstay_job_done
    WHERE space = %(space)s AND state = %(state)s AND (%(queue)s = '' OR queue = %(queue)s)
        AND flags & 128 = 0
    ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
-- include: _forget.sql
