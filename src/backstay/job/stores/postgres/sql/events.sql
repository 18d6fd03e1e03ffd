-- Purpose: what happened in all runs, behind a place; no further than nothing can come in between any more.
-- Parameters: space, mark, number, limit.
-- Returns: as run_events.sql, then mark and number.
SELECT run, first, "at", doc, mark::text, number FROM (
    SELECT run, first, "at", doc, mark, number, sum(last - first + 1) OVER (ORDER BY mark, number) - last + first - 1 AS before
    FROM (
        SELECT run, first, last, "at", doc, mark, number FROM backstay_run_event
        WHERE space = %(space)s AND (mark, number) > (%(mark)s::text::xid8, %(number)s::bigint)
            AND mark < pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY backstay_run_event.mark, number LIMIT %(limit)s) found) page
WHERE before < %(limit)s
-- Of the table: `mark` alone would be the text above, in which 1000 comes before 999.
ORDER BY page.mark, number
