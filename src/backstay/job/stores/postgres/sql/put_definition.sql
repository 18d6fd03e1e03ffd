-- Purpose: the next version of a definition, unless the newest is the same.
-- Parameters: space, workflow, digest, doc, now.
-- Returns: a row, if it is new. None: it is there, or somebody else stored one: look.
WITH
-- include: _clock.sql
, newest AS MATERIALIZED (
    SELECT version, digest FROM backstay_definition WHERE space = %(space)s AND workflow = %(workflow)s
    ORDER BY version DESC LIMIT 1
)
INSERT INTO backstay_definition (space, workflow, version, digest, doc, created)
SELECT %(space)s, %(workflow)s, coalesce((SELECT version FROM newest), 0) + 1, %(digest)s, %(doc)b, clock.now FROM clock
WHERE NOT EXISTS (SELECT FROM newest WHERE digest = %(digest)s)
ON CONFLICT (space, workflow, version) DO NOTHING
RETURNING version
