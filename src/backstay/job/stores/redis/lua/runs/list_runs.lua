-- Purpose: list runs, newest first.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = workflow; 3 = status as a letter ('': any); 4 = only ids before this one ('': all);
--       5 = number of runs at most
-- Returns: id, record, …

-- include: _shard.lua
local workflow, status, before, limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
-- include: _record.lua

local ids = redis.call('ZREVRANGEBYLEX', SHARD .. 'runs:' .. status .. ':' .. workflow,
  before == '' and '+' or '(' .. before, '-', 'LIMIT', 0, limit)
local found = {}
for i, raw in ipairs(fields_of('run', ids)) do
  if raw then
    found[#found + 1] = ids[i]
    found[#found + 1] = raw
  end
end
return found
