-- Purpose: the place behind all that happened so far.
-- Returns: mark.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text
