-- Purpose: hold jobs that have ended, in one order for all who do.
-- Parameters: space; array ids (sorted).
-- Returns: id, state, chain.
SELECT done.id, done.state, done.chain FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
    SELECT id, state, chain FROM backstay_job_done WHERE space = %(space)s AND id = n.id FOR UPDATE) done
