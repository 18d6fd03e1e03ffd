-- Purpose: jobs whose key is full leave their lanes.
-- Parameters: space; array ids.
WITH found AS MATERIALIZED (
    SELECT job.tid FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = n.id OFFSET 0) job
)
UPDATE backstay_job SET state = 'parked' FROM found WHERE backstay_job.ctid = tid AND fence = 0
