-- Purpose: the same, but those that somebody else has are left alone.
-- Parameters: array locks (sorted).
-- Returns: the locks that are ours.
SELECT n.lock FROM unnest(%(locks)b) AS n (lock) WHERE pg_try_advisory_xact_lock(n.lock)
