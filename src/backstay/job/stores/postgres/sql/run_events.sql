-- Purpose: what happened in a run.
-- Parameters: space, run, after, limit.
-- Returns: run, first, at, doc of each moment, in order. Of the first and the last there may be more than was asked for.
SELECT run, first, "at", doc FROM backstay_run_event
WHERE space = %(space)s AND run = %(run)s AND last > %(after)s AND first <= %(after)s + %(limit)s ORDER BY last
LIMIT %(limit)s
