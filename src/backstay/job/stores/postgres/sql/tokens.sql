-- Purpose: who may use the server now.
-- Parameters: space, now.
-- Returns: id, digest, role, name, owner, created, expires.
SELECT id, digest, role, name, owner, created, expires FROM backstay_token
WHERE space = %(space)s AND (expires = 0
    OR expires > coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))
ORDER BY id
