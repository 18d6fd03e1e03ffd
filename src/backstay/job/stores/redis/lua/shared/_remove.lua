-- Purpose: delete final jobs with all keys that belong to them. Expects SHARD, now, _record.lua and _moves.lua.

-- `state`: only jobs in this state are deleted; of the others only the stale entry in `end:<state>` is.
local function remove(ids, state)
  local from_run, gone = {}, {}
  fetch(ids)
  for _, id in ipairs(ids) do
    local job = jobs[id]
    if state then push(from_end, state, id) end
    if not (state and job and job.state ~= state) then gone[#gone + 1] = id end
    if job and gone[#gone] == id then
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
      if not state then push(from_end, job.state, id) end
      changed[id], jobs[id] = nil, false
    end
  end
  each('HDEL', 'job', gone)
  each('HDEL', 'doc', gone)
  each('ZREM', 'all', gone)
  for run, left in pairs(from_run) do each('ZREM', 'run-jobs:' .. run, left) end
end
