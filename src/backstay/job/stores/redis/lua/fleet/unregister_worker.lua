-- Purpose: delete a worker from the registry.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = the worker's id
-- Returns: 1; 0 if the worker was not registered

local SHARD = string.sub(KEYS[1], 1, -5)

redis.call('HDEL', SHARD .. 'workers', ARGV[2])
return redis.call('ZREM', SHARD .. 'heartbeats', ARGV[2])
