-- Purpose: access tokens of the server, and the secrets of the namespace.

-- name: put
-- Stores a token. An earlier token with this id is replaced.
-- Params: space (the namespace's number), id of the token, hash of the token, role, name, owner, time of creation (µs),
-- time of expiry (µs; 0: never).
INSERT OR REPLACE INTO backstay_token (space, id, digest, role, name, owner, created, expires)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop
-- Deletes a token.
-- Params: space (the namespace's number), id of the token.
DELETE FROM backstay_token WHERE space = ? AND id = ?;

-- name: tokens
-- Params: space (the namespace's number), now (µs).
-- Returns: for each token that has not expired: id, hash of the token, role, name, owner, time of creation (µs), time
-- of expiry (µs; 0: never).
SELECT id, digest, role, name, owner, created, expires FROM backstay_token
WHERE space = ? AND (expires = 0 OR expires > ?) ORDER BY id;

-- name: put_secret
-- Stores a secret of the namespace, unless there is one with this name.
-- Params: space (the namespace's number), name, value.
INSERT OR IGNORE INTO backstay_secret (space, name, value) VALUES (?, ?, ?);

-- name: secret
-- Params: space (the namespace's number), name.
-- Returns: the value.
SELECT value FROM backstay_secret WHERE space = ? AND name = ?;
