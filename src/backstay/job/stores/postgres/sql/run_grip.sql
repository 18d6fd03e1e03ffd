-- Purpose: hold the runs of what this transaction ended, released and handed out (settings: `_moved.sql`), as run_hold.sql does.
-- Parameters: space.
WITH
-- include: _moves.sql
, mine AS MATERIALIZED (
    SELECT DISTINCT run FROM moves ORDER BY run
)
SELECT count(*) FROM mine CROSS JOIN LATERAL (
    SELECT id FROM backstay_run WHERE space = %(space)s AND id = mine.run FOR NO KEY UPDATE) run
