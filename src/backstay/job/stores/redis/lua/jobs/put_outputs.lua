-- Purpose: add outputs of a job, by key.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job; 3 = fence; then: key, value, …
-- Returns: 1; 0: the lease is not current

-- include: _shard.lua
local id, fence = ARGV[2], tonumber(ARGV[3])
-- include: _record.lua
-- include: _leased.lua

if not leased(id, fence, OUTPUTS) then return 0 end
local values = {}
for i = 4, #ARGV do values[#values + 1] = ARGV[i] end
each('HSET', 'outputs:' .. id, values)
return 1
