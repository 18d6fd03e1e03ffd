-- Purpose: a run without its document.
-- Parameters: space, id.
-- Returns: the columns of `_run.sql`.
SELECT
-- include: _run.sql
    FROM backstay_run WHERE space = %(space)s AND id = %(id)s
