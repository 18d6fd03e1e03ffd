-- Purpose: delete the note of a tick whose job is enqueued in its own shard.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job; 3 = the encoded job
-- Returns: number of deleted notes

local SHARD = string.sub(KEYS[1], 1, -5)

if redis.call('HGET', SHARD .. 'ticking', ARGV[2]) ~= ARGV[3] then return 0 end
return redis.call('HDEL', SHARD .. 'ticking', ARGV[2])
