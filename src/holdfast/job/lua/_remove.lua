-- Purpose: delete final jobs with all that they left behind. Expects SHARD, now, _record.lua and _moves.lua.

local function remove(ids)
  local from_run = {}
  fetch(ids)
  for _, id in ipairs(ids) do
    local job = jobs[id]
    if job then
      count(job, -1)
      local chain = chain_of(job)
      local keys = {}
      if has(job.flags, LOGGED) then keys[#keys + 1] = SHARD .. 'log:' .. id end
      if has(job.flags, OUTPUTS) then keys[#keys + 1] = SHARD .. 'outputs:' .. id end
      if has(job.flags, ARTIFACTS) then
        keys[#keys + 1] = SHARD .. 'artifacts:' .. id
        for _, name in ipairs(redis.call('HKEYS', SHARD .. 'artifacts:' .. id)) do
          keys[#keys + 1] = SHARD .. 'artifact:' .. id .. ':' .. name
        end
      end
      if job.ext.run ~= '' then push(from_run, job.ext.run, id) end
      if job.ext.keyed then
        keys[#keys + 1] = SHARD .. 'waits:' .. id
        keys[#keys + 1] = SHARD .. 'upstream:' .. id
      end
      if has(job.flags, AWAITED) then keys[#keys + 1] = SHARD .. 'awaiting:' .. chain end
      for i = 1, #keys, MANY do redis.call('DEL', unpack(keys, i, math.min(i + MANY - 1, #keys))) end
      if chain ~= id and redis.call('HGET', SHARD .. 'chain', chain) == id then
        redis.call('HDEL', SHARD .. 'chain', chain)
      end
      push(from_end, job.state, id)
      changed[id], jobs[id] = nil, false
    end
  end
  each('HDEL', 'job', ids)
  each('HDEL', 'doc', ids)
  each('ZREM', 'all', ids)
  for run, gone in pairs(from_run) do each('ZREM', 'run-jobs:' .. run, gone) end
end
