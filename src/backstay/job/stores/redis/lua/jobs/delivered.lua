-- Purpose: delete delivered entries from the outbox.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; then '<job> <chain>', …
-- Returns: number of entries in the call

-- include: _shard.lua
-- include: _record.lua

local told = {}
for i = 2, #ARGV do told[#told + 1] = ARGV[i] end
each('HDEL', 'outbox', told)
return #told
