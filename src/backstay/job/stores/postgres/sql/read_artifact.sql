-- Purpose: one part of a file.
-- Parameters: space, job, name, part.
-- Returns: data.
SELECT part.data FROM (
    SELECT digest FROM backstay_artifact WHERE space = %(space)s AND job = %(job)s AND name = %(name)s AND whole
    OFFSET 0) file
CROSS JOIN LATERAL (
    SELECT data FROM backstay_artifact_part
    WHERE space = %(space)s AND job = %(job)s AND name = %(name)s AND digest = file.digest AND part = %(part)s) part
