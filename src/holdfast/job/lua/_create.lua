-- Purpose: make a job. Expects SHARD, now, _record.lua and _moves.lua.
--
-- A record comes as it will be stored, but for two places: `enqueued` has its delay, `due` the moment it is due, if one was
-- given. What it waits for comes as a row of: chain, kind (l: lives here; w: lives elsewhere and has not ended; + or -:
-- lives elsewhere and has ended, with a result or without), result.

local to_doc, to_all = {}, {}

local function final_state(state)
  return state == 'c' or state == 'f' or state == 'x' or state == 'k'
end

local function blockers(after)
  local list, at = {}, 1
  while at <= #after do
    local chain, kind, result
    chain, kind, result, at = struct.unpack('>I2c0c1I4c0', after, at)
    list[#list + 1] = { chain, kind, result }
  end
  return list
end

-- Answers its state; and the id of the job that has its unique key, if another has.
local function create(id, raw, doc, after, flags, chain)
  local there = job_of(id)
  if there then return there.state end
  local job = read(id, raw)
  job.due = job.due > 0 and job.due or now + job.enqueued
  job.enqueued, job.flags = now, flags
  if chain then
    job.ext = job.ext or { '', '', '', '', '', 0, 's', '', false, 0 }
    job.ext[CHAIN] = chain
  end
  if ext_of(job, UNIQUE) ~= '' then
    local key = unique_key(job)
    local other = holder(key)
    if other and other ~= id then
      if not chain then return job_of(other) and job_of(other).state or 'c', other end
      job.ext[UNIQUE] = '' -- a chain goes on all the same
    elseif job.ext[SCOPE] == 'w' then
      local window = job.ext[WINDOW]
      redis.call('SET', key, digits(now + window) .. ' ' .. id, 'PX', digits(math.ceil(window / 1000) + spare))
    else
      redis.call('SET', key, '0 ' .. id)
    end
  end
  jobs[id] = job
  to_doc[#to_doc + 1] = id
  to_doc[#to_doc + 1] = doc
  to_all[#to_all + 1] = '0'
  to_all[#to_all + 1] = id
  if ext_of(job, CHAIN) ~= '' then redis.call('HSET', SHARD .. 'chain', job.ext[CHAIN], id) end
  local waits, upstream, failed = {}, {}, 0
  for _, blocker in ipairs(after == '' and {} or blockers(after)) do
    local name, kind, result = blocker[1], blocker[2], blocker[3]
    if kind == 'l' then
      local last = last_of(name)
      local over = not last or final_state(last.state)
      if last and last.state ~= 'c' then -- one that failed may be tried again
        redis.call('SADD', SHARD .. 'awaiting:' .. name, id)
        if not has(last.flags, AWAITED) then last.flags = last.flags + AWAITED end
        touch(last)
      end
      kind = not over and 'w' or last and last.state == 'c' and '+' or '-'
      result = last and last.tail
    elseif kind == 'w' then
      redis.call('HSET', SHARD .. 'unregistered', id .. ' ' .. name, digits(now))
    end
    if kind == 'w' then
      waits[#waits + 1] = name
    else
      if kind == '-' then failed = failed + 1 end
      upstream[#upstream + 1] = name
      upstream[#upstream + 1] = kind == '+' and '+' .. result or '-'
    end
  end
  if failed > 0 then
    upstream[#upstream + 1] = ''
    upstream[#upstream + 1] = failed
  end
  each('HSET', 'upstream:' .. id, upstream)
  each('SADD', 'waits:' .. id, waits)
  if failed > 0 and job.ext[WHEN] == 's' then
    final(job, 'k', '')
  elseif #waits > 0 then
    move(job, 'b')
  else
    enter(job)
  end
  return job.state
end

local function store_new()
  each('HSET', 'doc', to_doc)
  each('ZADD', 'all', to_all)
end
