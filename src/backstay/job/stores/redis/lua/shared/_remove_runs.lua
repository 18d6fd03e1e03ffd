-- Purpose: delete expired runs with all their jobs and events. Expects SHARD, now, _record.lua, _moves.lua and _remove.lua.

local function forget_run(id)
  local run = run_of(id)
  if not run then return end
  list_run('ZREM', run, run.status)
  list_run('ZREM', run, '')
  redis.call('DEL', SHARD .. 'run-events:' .. id)
  redis.call('HDEL', SHARD .. 'run', id)
  redis.call('HDEL', SHARD .. 'run-doc', id)
end

-- Delete whole runs until `limit` is reached. Returns the number of deleted jobs and runs.
local function remove_runs(limit)
  local removed = 0
  while removed < limit do
    local id = redis.call('ZRANGEBYSCORE', SHARD .. 'run-end', '-inf', now, 'LIMIT', 0, 1)[1]
    if not id then break end
    local ids = redis.call('ZRANGE', SHARD .. 'run-jobs:' .. id, 0, -1)
    remove(ids)
    redis.call('DEL', SHARD .. 'run-jobs:' .. id)
    forget_run(id)
    redis.call('ZREM', SHARD .. 'run-end', id)
    removed = removed + 1 + #ids
  end
  return removed
end
