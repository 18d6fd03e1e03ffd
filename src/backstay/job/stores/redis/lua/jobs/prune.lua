-- Purpose: delete final jobs past their time, and the oldest completed ones above a number; and runs past theirs, with all of
-- their jobs. And what half a script may leave behind (_moves.lua) is set right, and numbers of nothing go.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = how many completed ones to keep; 3 = how many to delete at most
-- Returns: how many

-- include: _shard.lua
local keep, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
-- include: _record.lua
-- include: _moves.lua
-- include: _remove.lua
-- include: _remove_runs.lua
-- include: _repair.lua

local removed = 0
for _, state in ipairs({ 'c', 'f', 'x', 'k' }) do
  local ids = redis.call('ZRANGEBYSCORE', SHARD .. 'end:' .. state, '-inf', now, 'LIMIT', 0, limit - removed)
  if state == 'c' then
    local above = math.min(limit - removed, redis.call('ZCOUNT', SHARD .. 'end:c', '-inf', '(+inf') - keep)
    if above > #ids then ids = redis.call('ZRANGE', SHARD .. 'end:c', 0, above - 1) end
  end
  remove(ids, state)
  removed = removed + #ids
end
removed = removed + remove_runs(limit - removed)
mend()
flush('')
for _, field in ipairs(redis.call('HKEYS', SHARD .. 'count')) do
  if is_none(field) then redis.call('HDEL', SHARD .. 'count', field) end
end
return removed
