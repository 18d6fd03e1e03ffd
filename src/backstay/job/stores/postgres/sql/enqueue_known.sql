-- Purpose: what is known of jobs that were not stored.
-- Parameters: space; arrays ids, keys (their unique keys, or '').
-- Returns: id asked for, id of the job there is (NULL: none), its state.
SELECT n.id, coalesce(found.id, u.job), CASE coalesce(found.state, 'completed') WHEN 'parked' THEN 'pending' ELSE coalesce(found.state, 'completed') END
FROM unnest(%(ids)b, %(keys)b) AS n (id, key)
LEFT JOIN LATERAL (
    SELECT job FROM backstay_job_unique WHERE space = %(space)s AND key = n.key AND n.key <> '' OFFSET 0) u ON true
LEFT JOIN LATERAL (
    SELECT id, state, 1 AS place FROM backstay_job WHERE space = %(space)s AND id = n.id
    UNION ALL SELECT id, state, 2 FROM backstay_job_done WHERE space = %(space)s AND id = n.id
    UNION ALL SELECT id, state, 3 FROM backstay_job WHERE space = %(space)s AND id = u.job
    UNION ALL SELECT id, state, 4 FROM backstay_job_done WHERE space = %(space)s AND id = u.job
    ORDER BY place LIMIT 1) found ON true
