-- Purpose: set or remove the rate limit of a queue.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the queue's name
--       3 = '<µs between two starts> <starts allowed at once> <name of the rate bucket>', or '' to remove the limit
-- Returns: 1 if the queue had no limit before, or if its limit was removed; otherwise 0

local SHARD = string.sub(KEYS[1], 1, -5)
local field, rate = 'r' .. ARGV[2], ARGV[3]

if rate ~= '' then return redis.call('HSET', SHARD .. 'queues', field, rate) end
return redis.call('HDEL', SHARD .. 'queues', field)
