-- Purpose: delete an access token of the server.
-- KEYS: 1 = the first shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = token's id
-- Returns: 1; 0: there was none

local SHARD = string.sub(KEYS[1], 1, -5)

return redis.call('HDEL', SHARD .. 'tokens', ARGV[2])
