-- Purpose: read entries of the outbox: ended chains that jobs of other shards still wait for.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = largest number of entries to return
-- Returns: two values for each entry: '<id of the waiting job> <id of the ended chain>', then '+<result>' (the chain
--            completed) or '-' (no success)

local SHARD = string.sub(KEYS[1], 1, -5)
local limit = tonumber(ARGV[2])

local page, found = redis.call('HSCAN', SHARD .. 'outbox', 0, 'COUNT', limit)[2], {}
for i = 1, math.min(#page, 2 * limit) do found[i] = page[i] end
return found
