-- Purpose: delete final jobs and finished runs with all keys that belong to them. Expects SHARD, now, _record.lua and
-- _transitions.lua.

-- Delete the jobs `ids` with all keys that belong to them.
-- state: the letter of a final state if the ids were read from the index `end:<state>`, otherwise nil. With it, a job
-- that is in another state is not deleted; only its stale entry in that index is.
local function remove_jobs(ids, state)
  local from_run, removed = {}, {}
  fetch(ids)
  for _, id in ipairs(ids) do
    local job = jobs[id]
    if state then push(from_end, state, id) end
    if not (state and job and job.state ~= state) then removed[#removed + 1] = id end
    if job and removed[#removed] == id then
      count_job(job, -1)
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
      if job.ext.separate_waits then
        keys[#keys + 1] = SHARD .. 'waits:' .. id
        keys[#keys + 1] = SHARD .. 'upstream:' .. id
      end
      if has(job.flags, AWAITED) then keys[#keys + 1] = SHARD .. 'awaiting:' .. chain end
      for i = 1, #keys, MAX_ARGS do redis.call('DEL', unpack(keys, i, math.min(i + MAX_ARGS - 1, #keys))) end
      if chain ~= id and redis.call('HGET', SHARD .. 'chain', chain) == id then
        redis.call('HDEL', SHARD .. 'chain', chain)
      end
      if not state then push(from_end, job.state, id) end
      changed[id], jobs[id] = nil, false
    end
  end
  call_batched('HDEL', 'job', removed)
  call_batched('HDEL', 'doc', removed)
  call_batched('ZREM', 'all', removed)
  for run, run_ids in pairs(from_run) do call_batched('ZREM', 'run-jobs:' .. run, run_ids) end
end

-- Delete a run: its record, its document, its events and its entries in the lists of runs.
local function remove_run(id)
  local run = get_run(id)
  if not run then return end
  update_run_lists('ZREM', run, run.status)
  update_run_lists('ZREM', run, '')
  redis.call('DEL', SHARD .. 'run-events:' .. id)
  redis.call('HDEL', SHARD .. 'run', id)
  redis.call('HDEL', SHARD .. 'run-doc', id)
end

-- Delete expired runs, each with all its jobs, until at least `limit` jobs and runs are deleted. Returns their number.
local function remove_runs(limit)
  local removed = 0
  while removed < limit do
    local id = redis.call('ZRANGEBYSCORE', SHARD .. 'run-end', '-inf', now, 'LIMIT', 0, 1)[1]
    if not id then break end
    local ids = redis.call('ZRANGE', SHARD .. 'run-jobs:' .. id, 0, -1)
    remove_jobs(ids)
    redis.call('DEL', SHARD .. 'run-jobs:' .. id)
    remove_run(id)
    redis.call('ZREM', SHARD .. 'run-end', id)
    removed = removed + 1 + #ids
  end
  return removed
end
