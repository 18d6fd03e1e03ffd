-- Purpose: list the newest version of each workflow definition, sorted by the workflow's name.
-- KEYS: 1 = the first shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = return only names after this one
--       3 = largest number of definitions to return
-- Returns: two values for each definition: the workflow's name, then a string with number, time of creation (µs) and
--            digest of its newest version

-- include: _shard.lua
local after, limit = ARGV[2], tonumber(ARGV[3])
-- include: _record.lua

local names = redis.call('ZRANGEBYLEX', SHARD .. 'definitions', '(' .. after, '+', 'LIMIT', 0, limit)
local found = {}
for i, newest in ipairs(get_fields('definition', names)) do
  found[2 * i - 1], found[2 * i] = names[i], newest
end
return found
