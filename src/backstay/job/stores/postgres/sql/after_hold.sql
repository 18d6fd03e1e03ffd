-- Purpose: hold jobs that wait, in one order for all who do. Two blockers that end at the same moment meet here: the
-- second waits, and then sees what the first has left.
-- Parameters: space; array ids (sorted).
SELECT job.id FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
    SELECT id FROM backstay_job WHERE space = %(space)s AND id = n.id FOR NO KEY UPDATE) job
