-- Purpose: read undelivered outbox entries: ends of chains that jobs of other shards wait for. Bounded: a part of many.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = number at most
-- Returns: '<job> <chain>', '+<result>' or '-', …

local SHARD = string.sub(KEYS[1], 1, -5)
local limit = tonumber(ARGV[2])

local page, found = redis.call('HSCAN', SHARD .. 'outbox', 0, 'COUNT', limit)[2], {}
for i = 1, math.min(#page, 2 * limit) do found[i] = page[i] end
return found
