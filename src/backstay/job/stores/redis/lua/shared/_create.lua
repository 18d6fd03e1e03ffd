-- Purpose: create jobs. Expects SHARD, now, _record.lua and _transitions.lua.
--
-- The client sends a new job's record as it will be stored, except for two fields: `enqueued` holds the delay in µs
-- until the job is due, and `due` the absolute due time in µs, or 0 if the delay counts.
--
-- The client sends the job's blockers as one string with three values for each blocker: the chain's id, a code and a
-- result. Code 'l': a chain of this shard. The other codes mean a chain of another shard. 'w': it has not ended; '+':
-- it completed with this result; '-': it ended without a result.

-- What `create` collects: the values that `write_new` will write to the keys `doc`, `all` and `run-jobs:<run>`.
local to_doc, to_all, to_run = {}, {}, {}

local function is_final(state)
  return state == 'c' or state == 'f' or state == 'x' or state == 'k'
end

local function decode_blockers(after)
  local list, at = {}, 1
  while at <= #after do
    local chain, kind, result
    chain, kind, result, at = struct.unpack('>I2c0c1I4c0', after, at)
    list[#list + 1] = { chain, kind, result }
  end
  return list
end

-- Register a job as a dependent of a chain that has not completed. `last`: the chain's last job. A failed chain gets
-- dependents too, because it can be retried.
local function add_dependent(last, chain, id)
  if last.ext.run ~= '' and #last.ext.awaiting < MAX_INLINE_AWAITING and #id < 256 then
    local list = { unpack(last.ext.awaiting) }
    list[#list + 1] = id
    edit_ext(last).awaiting = list
  else
    push(to_await, chain, '0', id)
    if not has(last.flags, AWAITED) then last.flags = last.flags + AWAITED end
  end
  mark_changed(last)
end

-- Return the blockers of a new job as a list of chain, value, chain, value, …, and whether they fit into the job's
-- record. `resolve` in _finish.lua explains the values. Also register the job as a dependent of each blocker of this
-- shard that has not completed, and add each open blocker of another shard to `unregistered`. `list`: the decoded
-- blockers.
local function read_outcomes(job, list)
  local found, fits_inline = {}, job.ext.run ~= '' and get_run(job.ext.run) and #list <= MAX_INLINE_AFTER
  for _, blocker in ipairs(list) do
    local name, kind, result = blocker[1], blocker[2], blocker[3]
    local value = kind == '+' and '+' .. result or kind
    if kind == 'l' then
      local last = get_last_job(name)
      value = not last and '-' or is_final(last.state) and outcome_of(last) or 'w'
      local same = last and job.ext.run ~= '' and last.ext.run == job.ext.run
      if value == '+' then value = same and get_run(job.ext.run) and '=' or '+' .. last.tail end
      if last and last.state ~= 'c' then add_dependent(last, name, job.id) end
      fits_inline = fits_inline and same and #name < 256
    else
      fits_inline = false
      if kind == 'w' then redis.call('HSET', SHARD .. 'unregistered', job.id .. ' ' .. name, format_int(now)) end
    end
    found[#found + 1] = name
    found[#found + 1] = value
  end
  return found, fits_inline
end

-- Store the blockers of a new job: in its record if `fits_inline`, else in the keys `waits:<job>` and `upstream:<job>`.
-- Returns how many blockers have not ended, how many ended without success, and how many of these failed. `found`:
-- what `read_outcomes` returned.
local function store_blockers(job, found, fits_inline)
  local names, outcomes, waits, upstream, bad, failed = {}, {}, {}, {}, 0, 0
  for i = 1, #found, 2 do
    local outcome = string.sub(found[i + 1], 1, 1)
    names[#names + 1] = found[i]
    outcomes[#outcomes + 1] = outcome == '=' and '+' or outcome
    if is_bad(outcome) then bad = bad + 1 end
    if outcome == '-' then failed = failed + 1 end
    if outcome == 'w' then
      waits[#waits + 1] = found[i]
    else
      upstream[#upstream + 1] = found[i]
      upstream[#upstream + 1] = found[i + 1]
    end
  end
  local ext = edit_ext(job)
  ext.separate_waits = not fits_inline
  if fits_inline then
    ext.after, ext.outcomes = names, table.concat(outcomes)
  else
    if bad > 0 then upstream[#upstream + 1], upstream[#upstream + 2] = '', bad end
    if failed > 0 then upstream[#upstream + 1], upstream[#upstream + 2] = '!', failed end
    call_batched('HSET', 'upstream:' .. job.id, upstream)
    call_batched('SADD', 'waits:' .. job.id, waits)
  end
  return #waits, bad, failed
end

-- Create a job and return its state. If a job with this id exists, create nothing and return that job's state. If
-- another job holds the unique key, create nothing and return that job's state and id.
-- raw: the record as the client sent it. doc: the encoded arguments and metadata. after: the encoded blockers (see
-- above). inherited: nil, or what the new job takes over from the finishing job that creates it: always `run`. If the
-- new job continues the chain of the finishing job, also `chain`, `flags` (of the record) and `awaiting` (the jobs that
-- wait for the chain).
local function create(id, raw, doc, after, inherited)
  local stored = get_job(id)
  if stored then return stored.state end
  local job = decode_job(id, raw)
  job.due = job.due > 0 and job.due or now + job.enqueued
  job.enqueued = now
  if inherited then
    local ext = edit_ext(job)
    ext.run = inherited.run
    if inherited.chain then
      job.flags, ext.chain, ext.awaiting = inherited.flags, inherited.chain, inherited.awaiting
    end
  end
  if job.ext.unique ~= '' then
    local key = unique_key(job)
    local holder = find_holder(key)
    if holder and holder ~= id then
      if not (inherited and inherited.chain) then
        return get_job(holder) and get_job(holder).state or 'c', holder
      end
      job.ext.unique = '' -- the chain must continue, so the job is created without its unique key
    elseif job.ext.scope == 'w' then
      local window = job.ext.window
      local ttl = format_int(math.ceil(window / 1000) + extra_ttl)
      redis.call('SET', key, format_int(now + window) .. ' ' .. id, 'PX', ttl)
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
    run = get_run(job.ext.run)
  end
  local waits, bad, failed = 0, 0, 0
  if after ~= '' then waits, bad, failed = store_blockers(job, read_outcomes(job, decode_blockers(after))) end
  if run and run.cancelling then
    end_job(job, 'x', cmsgpack.pack({ kind = 'Cancelled', message = run.reason, at = now }), run.reason)
  elseif job.ext.when == 's' and bad > 0 then
    end_job(job, 'k', '', '', failed > 0)
  elseif waits > 0 then
    change_state(job, 'b')
  elseif job.ext.when == 'f' and failed == 0 then
    end_job(job, 'k', '', '')
  else
    make_pending(job)
  end
  return job.state
end

-- Write what `create` collected in `to_doc`, `to_all` and `to_run`.
local function write_new()
  call_batched('HSET', 'doc', to_doc)
  call_batched('ZADD', 'all', to_all)
  for run, ids in pairs(to_run) do call_batched('ZADD', 'run-jobs:' .. run, ids) end
end
