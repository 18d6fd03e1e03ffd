started AS (
    DELETE FROM backstay_job_unique USING (
        SELECT u.tid FROM claimed CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM backstay_job_unique
            WHERE space = %(space)s AND key = claimed.unique_key AND job = claimed.id OFFSET 0) u
        WHERE claimed.flags & 16 <> 0) n
    WHERE backstay_job_unique.ctid = n.tid
)
