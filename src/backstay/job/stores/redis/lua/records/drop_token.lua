-- Purpose: somebody may not use the server any more.
-- KEYS: 1 = the first shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = token's id
-- Returns: how many there were

local SHARD = string.sub(KEYS[1], 1, -5)

return redis.call('HDEL', SHARD .. 'tokens', ARGV[2])
