-- Purpose: nobody else counts the jobs of these concurrency keys until the end of the transaction.
-- Parameters: array locks (sorted).
SELECT pg_advisory_xact_lock(n.lock) FROM unnest(%(locks)b) AS n (lock)
