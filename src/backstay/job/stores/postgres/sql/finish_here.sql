-- Purpose: finish.sql where it is known where the rows lie (ctid_cache.py). Those that are elsewhere meanwhile are not ended.
-- Parameters: as finish.sql, and an array places.
-- Returns: as finish.sql.
WITH
-- include: _clock.sql
, found AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)b, %(fences)b, %(states)b, %(results)b, %(errors)b, %(places)b)
        WITH ORDINALITY AS e (e_id, e_fence, e_state, e_result, e_error, tid, place)
    WHERE
-- include: _my_turn.sql
),
-- include: _finish.sql
