-- Purpose: pause or resume a queue. Claims skip a paused queue.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = queue; 3 = '1': pause, '0': resume
-- Returns: number of added or deleted settings

local SHARD = string.sub(KEYS[1], 1, -5)
local field, paused = 'p' .. ARGV[2], ARGV[3] == '1'

if paused then return redis.call('HSET', SHARD .. 'queues', field, '1') end
return redis.call('HDEL', SHARD .. 'queues', field)
