-- Purpose: the next part of a file. Whoever calls it holds the file.
-- Parameters: space, job, name, digest, part, data.
WITH counted AS (
    UPDATE backstay_artifact SET parts = %(part)s + 1
    WHERE space = %(space)s AND job = %(job)s AND name = %(name)s AND digest = %(digest)s
)
INSERT INTO backstay_artifact_part (space, job, name, digest, part, data)
VALUES (%(space)s, %(job)s, %(name)s, %(digest)s, %(part)s, %(data)b)
