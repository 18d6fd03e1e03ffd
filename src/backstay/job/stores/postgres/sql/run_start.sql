-- Purpose: a run begins, unless it is there already.
-- Parameters: space, id, workflow, version, doc, timeout, keep, now.
-- Returns: a row, if it is new.
WITH
-- include: _clock.sql
INSERT INTO backstay_run (space, id, workflow, version, doc, created, timeout, deadline, keep)
SELECT %(space)s, %(id)s, %(workflow)s, %(version)s, %(doc)b, clock.now, %(timeout)s::bigint,
    CASE WHEN %(timeout)s::bigint > 0 THEN clock.now + %(timeout)s::bigint ELSE 0 END, %(keep)s::bigint
FROM clock
ON CONFLICT (space, id) DO NOTHING
RETURNING id
