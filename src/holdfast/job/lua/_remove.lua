-- Purpose: delete final jobs with all that they left behind. Expects SHARD, now, _record.lua and _moves.lua.

local function remove(ids)
  fetch(ids)
  for _, id in ipairs(ids) do
    local job = jobs[id]
    if job then
      count(job, -1)
      local chain = chain_of(job)
      local keys = {}
      if has(job.flags, LOGGED) then keys[#keys + 1] = SHARD .. 'log:' .. id end
      if has(job.flags, OUTPUTS) then keys[#keys + 1] = SHARD .. 'outputs:' .. id end
      if ext_of(job, AFTER) == true then
        keys[#keys + 1] = SHARD .. 'waits:' .. id
        keys[#keys + 1] = SHARD .. 'upstream:' .. id
      end
      if has(job.flags, AWAITED) then keys[#keys + 1] = SHARD .. 'awaiting:' .. chain end
      if #keys > 0 then redis.call('DEL', unpack(keys)) end
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
end
