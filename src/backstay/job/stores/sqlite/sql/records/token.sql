-- Purpose: access tokens of the server.

-- name: put
-- Params: space, id, digest, role, name, created, expires.
INSERT OR REPLACE INTO backstay_token (space, id, digest, role, name, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: drop
-- Params: space, id.
DELETE FROM backstay_token WHERE space = ? AND id = ?;

-- name: tokens
-- Params: space, now.
-- Returns: id, digest, role, name, created, expires of those that have not expired.
SELECT id, digest, role, name, created, expires FROM backstay_token
WHERE space = ? AND (expires = 0 OR expires > ?) ORDER BY id;
