-- Purpose: hold a file that is on its way, or whole.
-- Parameters: space, job, name, digest.
-- Returns: how many parts there are, whether it is whole.
SELECT parts, whole FROM backstay_artifact
WHERE space = %(space)s AND job = %(job)s AND name = %(name)s AND digest = %(digest)s FOR UPDATE
