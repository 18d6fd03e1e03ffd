-- Purpose: delete jobs that ended in a state that has an index of its own (failed, cancelled, skipped), oldest first. Those of runs go with them.
-- Parameters: as purge.sql.
-- Returns: how many.
WITH chosen AS MATERIALIZED (
    SELECT ctid AS tid FROM backstay_job_done
    WHERE space = %(space)s AND state = %(state)s AND state <> 'completed' AND (%(queue)s = '' OR queue = %(queue)s)
        AND flags & 128 = 0
    ORDER BY state, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
-- include: _forget.sql
