-- Purpose: whether more has happened behind a place, which cannot be shown yet. If so, after a moment.
-- Parameters: space, mark, number.
-- Returns: a row, if so.
SELECT pg_sleep(0.002) FROM (
    SELECT FROM backstay_run_event
    WHERE space = %(space)s AND (mark, number) > (%(mark)s::text::xid8, %(number)s::bigint) LIMIT 1) more
