-- Purpose: jobs of other shards have been told: forget these.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; then '<job> <chain>', …
-- Returns: how many there were

-- include: _shard.lua
-- include: _record.lua

local told = {}
for i = 2, #ARGV do told[#told + 1] = ARGV[i] end
each('HDEL', 'outbox', told)
return #told
