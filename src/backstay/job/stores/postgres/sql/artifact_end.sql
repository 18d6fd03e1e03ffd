-- Purpose: a file is whole: it replaces all others of its name.
-- Parameters: space, job, name, digest, size, now.
WITH
-- include: _clock.sql
, parts AS (
    DELETE FROM backstay_artifact_part
    WHERE space = %(space)s AND job = %(job)s AND name = %(name)s AND digest <> %(digest)s
), others AS (
    DELETE FROM backstay_artifact
    WHERE space = %(space)s AND job = %(job)s AND name = %(name)s AND digest <> %(digest)s
)
UPDATE backstay_artifact SET whole = true, size = %(size)s, created = clock.now FROM clock
WHERE space = %(space)s AND job = %(job)s AND name = %(name)s AND digest = %(digest)s
