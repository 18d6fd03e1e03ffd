-- Purpose: hold the jobs of runs that are to be deleted, before the runs, as everybody does.
-- Parameters: space; array runs.
SELECT done.id FROM unnest(%(runs)b) AS n (run) CROSS JOIN LATERAL (
    SELECT id FROM backstay_job_done WHERE space = %(space)s AND run = n.run AND run <> '' AND flags & 128 <> 0
    ORDER BY id FOR UPDATE) done
