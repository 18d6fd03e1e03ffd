-- Purpose: the files that a job left, by name.
-- Parameters: space, job.
-- Returns: job, name, size, digest, created.
SELECT job, name, size, digest, created FROM backstay_artifact WHERE space = %(space)s AND job = %(job)s AND whole
ORDER BY name
