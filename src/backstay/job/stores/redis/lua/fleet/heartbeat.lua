-- Purpose: register a worker or refresh its heartbeat. Deletes workers without a heartbeat for a day.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = worker; 3 = its description (msgpack)
-- Returns: 1

-- include: _shard.lua
local id, told, DAY = ARGV[2], ARGV[3], 86400000000

local there = redis.call('HGET', SHARD .. 'workers', id)
local registered = there and struct.unpack('>I8', there) or now
redis.call('HSET', SHARD .. 'workers', id, struct.pack('>I8I8', registered, now) .. told)
redis.call('ZADD', SHARD .. 'beats', now, id)
local gone = redis.call('ZRANGEBYSCORE', SHARD .. 'beats', '-inf', now - DAY, 'LIMIT', 0, 100)
if #gone > 0 then
  redis.call('HDEL', SHARD .. 'workers', unpack(gone))
  redis.call('ZREM', SHARD .. 'beats', unpack(gone))
end
return 1
