-- Purpose: delete a worker from the registry.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = worker
-- Returns: 1; 0: it was not registered

local SHARD = string.sub(KEYS[1], 1, -5)

redis.call('HDEL', SHARD .. 'workers', ARGV[2])
return redis.call('ZREM', SHARD .. 'beats', ARGV[2])
