-- Purpose: a file is on its way.
-- Parameters: space, job, name, digest, size.
INSERT INTO backstay_artifact (space, job, name, digest, size)
VALUES (%(space)s, %(job)s, %(name)s, %(digest)s, %(size)s)
ON CONFLICT (space, job, name, digest) DO NOTHING
