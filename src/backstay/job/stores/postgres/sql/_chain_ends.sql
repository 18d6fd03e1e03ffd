live AS MATERIALIZED (
    SELECT j.id FROM unnest(%(chains)b) AS n (chain)
    CROSS JOIN LATERAL (
        SELECT id, flags FROM backstay_job WHERE space = %(space)s AND id = n.chain AND chain = id
        UNION ALL
        SELECT id, flags FROM backstay_job WHERE space = %(space)s AND chain = n.chain AND chain <> id) j
    WHERE j.flags & %(flag)s = 0
    ORDER BY j.id
)
