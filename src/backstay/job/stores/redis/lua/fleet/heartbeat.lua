-- Purpose: register a worker or refresh its heartbeat. Deletes workers whose last heartbeat is more than a day old.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the worker's id
--       3 = the worker's description: a `WorkerRecord` as msgpack
-- Returns: 1

-- include: _shard.lua
-- include: _when_full.lua
local id, description, DAY = ARGV[2], ARGV[3], 86400000000

local stored = redis.call('HGET', SHARD .. 'workers', id)
local registered = stored and struct.unpack('>I8', stored) or now
redis.call('HSET', SHARD .. 'workers', id, struct.pack('>I8I8', registered, now) .. description)
redis.call('ZADD', SHARD .. 'heartbeats', now, id)
local expired = redis.call('ZRANGEBYSCORE', SHARD .. 'heartbeats', '-inf', now - DAY, 'LIMIT', 0, 100)
if #expired > 0 then
  redis.call('HDEL', SHARD .. 'workers', unpack(expired))
  redis.call('ZREM', SHARD .. 'heartbeats', unpack(expired))
end
return 1
