-- Purpose: what happened in runs, in order. Whoever calls it holds them, from an earlier statement on: see the table.
-- Parameters: space; arrays runs, firsts, lasts, ats, docs.
INSERT INTO backstay_run_event (mark, space, run, first, last, "at", doc)
SELECT
    -- The latest that has ended, not the one after it: that may be yet to come, and until then nobody would be shown this.
    greatest((pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8, pg_current_xact_id()),
    %(space)s, n.run, n.first, n.last, n.at, n.doc
FROM unnest(%(runs)b, %(firsts)b, %(lasts)b, %(ats)b, %(docs)b) WITH ORDINALITY AS n (run, first, last, at, doc, place)
ORDER BY n.place
