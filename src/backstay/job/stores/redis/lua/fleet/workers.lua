-- Purpose: read all workers with a heartbeat within the last day.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
-- Returns: one string for each worker: time of its registration (µs, 8 bytes), time of its last heartbeat (µs, 8
--            bytes), its description (a `WorkerRecord` as msgpack)

-- include: _shard.lua

local ids = redis.call('ZRANGEBYSCORE', SHARD .. 'heartbeats', '(' .. string.format('%.0f', now - 86400000000), '+inf')
local found = {}
for i, id in ipairs(ids) do found[i] = redis.call('HGET', SHARD .. 'workers', id) end
return found
