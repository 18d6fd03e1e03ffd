-- Purpose: ends of chains here that jobs of other shards have not been told of yet: some of them, if there are many.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = how many at most
-- Returns: '<job> <chain>', '+<result>' or '-', …

local SHARD = string.sub(KEYS[1], 1, -5)
local limit = tonumber(ARGV[2])

local page, found = redis.call('HSCAN', SHARD .. 'outbox', 0, 'COUNT', limit)[2], {}
for i = 1, math.min(#page, 2 * limit) do found[i] = page[i] end
return found
