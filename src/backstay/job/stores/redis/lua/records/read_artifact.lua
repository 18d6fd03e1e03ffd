-- Purpose: read one part of a job's artifact.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job; 3 = name; 4 = part
-- Returns: data or false

local SHARD = string.sub(KEYS[1], 1, -5)

return redis.call('LINDEX', SHARD .. 'artifact:' .. ARGV[2] .. ':=' .. ARGV[3], ARGV[4])
