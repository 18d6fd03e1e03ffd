-- Purpose: delete expired jobs, the oldest completed jobs above a number, and expired runs with their jobs. Also repairs the
-- traces of half-applied scripts (_moves.lua) and deletes counts of zero.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = number of completed jobs to keep; 3 = number to delete at most
-- Returns: number of deleted jobs and runs

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
