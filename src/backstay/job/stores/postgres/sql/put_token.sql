-- Purpose: somebody may use the server.
-- Parameters: space, id, digest, role, name, owner, created (0: now), expires, now.
WITH
-- include: _clock.sql
INSERT INTO backstay_token (space, id, digest, role, name, owner, created, expires)
SELECT %(space)s, %(id)s, %(digest)b, %(role)s, %(name)s, %(owner)s,
    CASE WHEN %(created)s::bigint > 0 THEN %(created)s::bigint ELSE clock.now END, %(expires)s::bigint
FROM clock
ON CONFLICT (space, id) DO UPDATE SET digest = excluded.digest, role = excluded.role, name = excluded.name,
    owner = excluded.owner, created = excluded.created, expires = excluded.expires
