SELECT coalesce(array_agg(ARRAY[run, kind, worker, ids::text, attempts::text])::text, '') FROM (
    SELECT run, kind, worker, array_agg(id ORDER BY nth) AS ids,
        CASE WHEN min(attempt) = max(attempt) THEN ARRAY[min(attempt)] ELSE array_agg(attempt ORDER BY nth) END AS attempts
    FROM moves GROUP BY run, kind, worker) alike
