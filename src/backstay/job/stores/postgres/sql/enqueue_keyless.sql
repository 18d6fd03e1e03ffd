-- Purpose: the next of a chain goes on without its unique key, if another has it.
-- Parameters: space; array ids.
WITH without AS MATERIALIZED (
    SELECT job.tid FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
        SELECT ctid AS tid, id, unique_key FROM backstay_job WHERE space = %(space)s AND id = n.id OFFSET 0) job
    WHERE NOT EXISTS (
        SELECT FROM backstay_job_unique u
        WHERE u.space = %(space)s AND u.key = job.unique_key AND u.job = job.id)
)
UPDATE backstay_job SET unique_key = '', unique_scope = '', unique_window = 0, flags = flags & ~24
FROM without WHERE backstay_job.ctid = without.tid
