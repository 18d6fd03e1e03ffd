-- Purpose: how many jobs of runs are in which state, of a chain only the last one. Whoever asks holds the runs, from an earlier statement on.
-- Parameters: space; array ids.
-- Returns: id, a count for each state, how many failed and are not soft.
SELECT run.id, job.* FROM unnest(%(ids)b) AS run (id) CROSS JOIN LATERAL (
-- include: _run_count.sql
) job
