-- Purpose: create a job. Expects SHARD, now, _record.lua and _moves.lua.
--
-- A new record arrives as it will be stored, except for two fields: `enqueued` holds the delay, `due` the absolute due time
-- or 0. Its blockers arrive as a sequence of: chain, kind (l: of this shard; w: of another shard, not ended; + or -: of
-- another shard, ended with or without a result), result.

local to_doc, to_all, to_run = {}, {}, {}

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

-- Add a dependent to the last job of a chain that has not completed. A failed one is included: it may be retried.
local function await(last, chain, id)
  if last.ext.run ~= '' and #last.ext.awaiting < MOST_AWAITING and #id < 256 then
    local list = { unpack(last.ext.awaiting) }
    list[#list + 1] = id
    own_ext(last).awaiting = list
  else
    push(to_await, chain, '0', id)
    if not has(last.flags, AWAITED) then last.flags = last.flags + AWAITED end
  end
  touch(last)
end

-- Return the current outcomes of a new job's blockers: names and values in turn, as `resolve` takes them; and whether they
-- fit into the record.
local function look_at_blockers(job, list)
  local found, inside = {}, job.ext.run ~= '' and run_of(job.ext.run) and #list <= MOST_AFTER
  for _, blocker in ipairs(list) do
    local name, kind, result = blocker[1], blocker[2], blocker[3]
    local value = kind == '+' and '+' .. result or kind
    if kind == 'l' then
      local last = last_of(name)
      value = not last and '-' or final_state(last.state) and letter_of(last) or 'w'
      local same = last and job.ext.run ~= '' and last.ext.run == job.ext.run
      if value == '+' then value = same and run_of(job.ext.run) and '=' or '+' .. last.tail end
      if last and last.state ~= 'c' then await(last, name, job.id) end
      inside = inside and same and #name < 256
    else
      inside = false
      if kind == 'w' then redis.call('HSET', SHARD .. 'unregistered', job.id .. ' ' .. name, digits(now)) end
    end
    found[#found + 1] = name
    found[#found + 1] = value
  end
  return found, inside
end

-- Store the blockers of a new job. Returns how many are open, how many ended without success and how many failed.
local function note(job, found, inside)
  local names, letters, waits, upstream, bad, failed = {}, {}, {}, {}, 0, 0
  for i = 1, #found, 2 do
    local letter = string.sub(found[i + 1], 1, 1)
    names[#names + 1] = found[i]
    letters[#letters + 1] = letter == '=' and '+' or letter
    if is_bad(letter) then bad = bad + 1 end
    if letter == '-' then failed = failed + 1 end
    if letter == 'w' then
      waits[#waits + 1] = found[i]
    else
      upstream[#upstream + 1] = found[i]
      upstream[#upstream + 1] = found[i + 1]
    end
  end
  local ext = own_ext(job)
  ext.keyed = not inside
  if inside then
    ext.after, ext.letters = names, table.concat(letters)
  else
    if bad > 0 then upstream[#upstream + 1], upstream[#upstream + 2] = '', bad end
    if failed > 0 then upstream[#upstream + 1], upstream[#upstream + 2] = '!', failed end
    each('HSET', 'upstream:' .. job.id, upstream)
    each('SADD', 'waits:' .. job.id, waits)
  end
  return #waits, bad, failed
end

-- Create a job. Returns its state; and the id of the job that holds its unique key, if another job does. `heir`: what it
-- inherits: the run of the job that creates it; and from a job that it follows, flags, chain and dependents.
local function create(id, raw, doc, after, heir)
  local there = job_of(id)
  if there then return there.state end
  local job = read(id, raw)
  job.due = job.due > 0 and job.due or now + job.enqueued
  job.enqueued = now
  if heir then
    local ext = own_ext(job)
    ext.run = heir.run
    if heir.chain then job.flags, ext.chain, ext.awaiting = heir.flags, heir.chain, heir.awaiting end
  end
  if job.ext.unique ~= '' then
    local key = unique_key(job)
    local other = holder(key)
    if other and other ~= id then
      if not (heir and heir.chain) then return job_of(other) and job_of(other).state or 'c', other end
      job.ext.unique = '' -- the chain continues all the same
    elseif job.ext.scope == 'w' then
      local window = job.ext.window
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
  if job.ext.chain ~= '' then redis.call('HSET', SHARD .. 'chain', job.ext.chain, id) end
  local run = false
  if job.ext.run ~= '' then
    push(to_run, job.ext.run, '0', id)
    run = run_of(job.ext.run)
  end
  local waits, bad, failed = 0, 0, 0
  if after ~= '' then waits, bad, failed = note(job, look_at_blockers(job, blockers(after))) end
  if run and run.cancelling then
    final(job, 'x', cmsgpack.pack({ kind = 'Cancelled', message = run.reason, at = now }), run.reason)
  elseif job.ext.when == 's' and bad > 0 then
    final(job, 'k', '', '', failed > 0)
  elseif waits > 0 then
    move(job, 'b')
  elseif job.ext.when == 'f' and failed == 0 then
    final(job, 'k', '', '')
  else
    enter(job)
  end
  return job.state
end

local function store_new()
  each('HSET', 'doc', to_doc)
  each('ZADD', 'all', to_all)
  for run, ids in pairs(to_run) do each('ZADD', 'run-jobs:' .. run, ids) end
end
