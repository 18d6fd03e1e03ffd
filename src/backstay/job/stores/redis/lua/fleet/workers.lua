-- Purpose: read all workers with a heartbeat within a day.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock
-- Returns: {registered, beat, description}, …

-- include: _shard.lua

local ids = redis.call('ZRANGEBYSCORE', SHARD .. 'beats', '(' .. string.format('%.0f', now - 86400000000), '+inf')
local found = {}
for i, id in ipairs(ids) do found[i] = redis.call('HGET', SHARD .. 'workers', id) end
return found
