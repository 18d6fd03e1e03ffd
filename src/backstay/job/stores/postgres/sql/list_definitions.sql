-- Purpose: the newest version of each definition, by name.
-- Parameters: space, after, limit.
-- Returns: workflow, version, digest, created.
WITH RECURSIVE names (name, place) AS (
    (SELECT workflow, 1 FROM backstay_definition WHERE space = %(space)s AND workflow > %(after)s
        ORDER BY workflow LIMIT 1)
    UNION ALL
    SELECT (SELECT workflow FROM backstay_definition WHERE space = %(space)s AND workflow > names.name
        ORDER BY workflow LIMIT 1), place + 1
    FROM names WHERE name IS NOT NULL AND place < %(limit)s
)
SELECT newest.* FROM names CROSS JOIN LATERAL (
    SELECT workflow, version, digest, created FROM backstay_definition
    WHERE space = %(space)s AND workflow = names.name ORDER BY version DESC LIMIT 1) newest
WHERE names.name IS NOT NULL AND %(limit)s > 0
ORDER BY 1
