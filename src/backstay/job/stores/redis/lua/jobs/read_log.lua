-- Purpose: read chunks of a job's log after a number.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job; 3 = number of the last chunk already read; 4 = number of chunks at most
-- Returns: '<number> <chunk>', …

local SHARD = string.sub(KEYS[1], 1, -5)
local id, after, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])

return redis.call('ZRANGEBYSCORE', SHARD .. 'log:' .. id, '(' .. after, '+inf', 'LIMIT', 0, limit)
