-- Purpose: delete final jobs past their time, and the oldest completed ones above a number; and runs past theirs, with all of
-- their jobs. And what half a script may leave behind (_moves.lua): jobs that are parked although none of their key runs go
-- back, and numbers of nothing go.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = how many completed ones to keep; 3 = how many to delete at most
-- Returns: how many

-- include: _shard.lua
local keep, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
-- include: _record.lua
-- include: _moves.lua
-- include: _remove.lua
-- include: _remove_runs.lua

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
local counted = redis.call('HKEYS', SHARD .. 'count')
for _, field in ipairs(counted) do
  if string.sub(field, 1, 1) == 'p' then
    local parked = SHARD .. 'parked-since:' .. string.sub(field, 2)
    -- A few, any of them: there may be many, and this is called again and again.
    for _, id in ipairs(redis.call('ZRANDMEMBER', parked, 20)) do
      local job = job_of(id)
      if not job or job.state ~= 'p' then
        redis.call('ZREM', parked, id)
      elseif job.ext.key ~= '' and running_of(job.ext.key) <= 0 then
        unpark(job.ext.key)
      end
    end
  end
end
flush('')
for _, field in ipairs(counted) do
  if is_none(field) then redis.call('HDEL', SHARD .. 'count', field) end
end
return removed
