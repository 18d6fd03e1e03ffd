-- Purpose: pause or resume a queue. Claims skip a paused queue.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = the queue's name; 3 = '1' to pause, '0' to resume
-- Returns: 1 if this changed the queue, 0 if it was already paused or already resumed

local SHARD = string.sub(KEYS[1], 1, -5)
local field, paused = 'p' .. ARGV[2], ARGV[3] == '1'

if paused then return redis.call('HSET', SHARD .. 'queues', field, '1') end
return redis.call('HDEL', SHARD .. 'queues', field)
