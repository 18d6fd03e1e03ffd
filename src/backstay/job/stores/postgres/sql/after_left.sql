-- Purpose: which of these jobs wait for a chain that has not ended.
-- Parameters: space; array ids.
-- Returns: ids.
SELECT n.id FROM unnest(%(ids)b) AS n (id)
WHERE EXISTS (
    SELECT FROM backstay_job_after WHERE space = %(space)s AND job = n.id AND ended < true ORDER BY ended DESC, chain DESC OFFSET 0)
