-- Purpose: a definition.
-- Parameters: space, workflow, version (0: the newest).
-- Returns: workflow, version, digest, doc, created.
SELECT workflow, version, digest, doc, created FROM backstay_definition
WHERE space = %(space)s AND workflow = %(workflow)s AND (%(version)s::bigint = 0 OR version = %(version)s::bigint)
ORDER BY version DESC LIMIT 1
