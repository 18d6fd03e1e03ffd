-- Purpose: list the newest version of each definition, by name.
-- KEYS: 1 = the first shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = only names after this one; 3 = number at most
-- Returns: workflow, {version, created, digest}, …

-- include: _shard.lua
local after, limit = ARGV[2], tonumber(ARGV[3])
-- include: _record.lua

local names = redis.call('ZRANGEBYLEX', SHARD .. 'definitions', '(' .. after, '+', 'LIMIT', 0, limit)
local found = {}
for i, newest in ipairs(fields_of('definition', names)) do
  found[2 * i - 1], found[2 * i] = names[i], newest
end
return found
