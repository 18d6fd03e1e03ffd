-- Purpose: a run.
-- Parameters: space, id.
-- Returns: the columns of `_run.sql`, then doc.
SELECT
-- include: _run.sql
    , doc FROM backstay_run WHERE space = %(space)s AND id = %(id)s
