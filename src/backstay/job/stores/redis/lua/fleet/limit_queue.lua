-- Purpose: set or remove the rate limit of a queue.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = queue; 3 = '<interval> <burst> <bucket>', or '' for no limit
-- Returns: number of added or deleted settings

local SHARD = string.sub(KEYS[1], 1, -5)
local field, rate = 'r' .. ARGV[2], ARGV[3]

if rate ~= '' then return redis.call('HSET', SHARD .. 'queues', field, rate) end
return redis.call('HDEL', SHARD .. 'queues', field)
