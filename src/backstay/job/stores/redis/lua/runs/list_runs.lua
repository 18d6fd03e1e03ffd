-- Purpose: list runs, newest first.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = a workflow's name, '' for any
--       3 = letter of a status, '' for any: 'q' queued, 'r' running, 's' success, 'f' failure, 'x' cancelled
--       4 = return only runs whose id is smaller than this one, '' for all
--       5 = largest number of runs to return
-- Returns: two values for each run: id, record

-- include: _shard.lua
local workflow, status, before, limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
-- include: _record.lua

local ids = redis.call('ZREVRANGEBYLEX', SHARD .. 'runs:' .. status .. ':' .. workflow,
  before == '' and '+' or '(' .. before, '-', 'LIMIT', 0, limit)
local found = {}
for i, raw in ipairs(get_fields('run', ids)) do
  if raw then
    found[#found + 1] = ids[i]
    found[#found + 1] = raw
  end
end
return found
