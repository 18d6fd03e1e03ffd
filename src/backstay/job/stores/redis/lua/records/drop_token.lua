-- Purpose: delete an access token of the server.
-- KEYS: 1 = the first shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = the token's id
-- Returns: 1; 0 if there is no such token

local SHARD = string.sub(KEYS[1], 1, -5)

return redis.call('HDEL', SHARD .. 'tokens', ARGV[2])
