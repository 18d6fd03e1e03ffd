-- Purpose: delete final jobs and finished runs whose retention has ended. Also delete the oldest completed jobs beyond
-- a number, repair what half-applied scripts left inconsistent (_repair.lua), and delete job counts that are zero.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = number of completed jobs to keep
--       3 = largest number of jobs and runs to delete
-- Returns: number of deleted jobs and runs

-- include: _shard.lua
-- include: _when_full.lua
local keep, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
-- include: _record.lua
-- include: _transitions.lua
-- include: _remove.lua
-- include: _repair.lua

local removed = 0
for _, state in ipairs({ 'c', 'f', 'x', 'k' }) do
  local ids = redis.call('ZRANGEBYSCORE', SHARD .. 'end:' .. state, '-inf', now, 'LIMIT', 0, limit - removed)
  if state == 'c' then
    local above = math.min(limit - removed, redis.call('ZCOUNT', SHARD .. 'end:c', '-inf', '(+inf') - keep)
    if above > #ids then ids = redis.call('ZRANGE', SHARD .. 'end:c', 0, above - 1) end
  end
  remove_jobs(ids, state)
  removed = removed + #ids
end
removed = removed + remove_runs(limit - removed)
repair()
flush('')
for _, field in ipairs(redis.call('HKEYS', SHARD .. 'count')) do
  if is_index_empty(field) then redis.call('HDEL', SHARD .. 'count', field) end
end
return removed
