-- Purpose: read one job.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job
-- Returns: {record or false, doc, end of its lease or false, open blockers}

local SHARD = string.sub(KEYS[1], 1, -5)
local id = ARGV[2]

return { redis.call('HGET', SHARD .. 'job', id), redis.call('HGET', SHARD .. 'doc', id),
  redis.call('ZSCORE', SHARD .. 'lease', id), redis.call('SMEMBERS', SHARD .. 'waits:' .. id) }
