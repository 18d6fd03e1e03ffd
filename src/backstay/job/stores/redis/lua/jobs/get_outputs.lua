-- Purpose: read the outputs of a job.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job
-- Returns: key, value, …

local SHARD = string.sub(KEYS[1], 1, -5)

return redis.call('HGETALL', SHARD .. 'outputs:' .. ARGV[2])
