-- Purpose: end jobs, and release or skip their dependents. Part of _moves.lua.

-- Make a job final. Its chain ends with it; `settle` resolves its dependents. `blamed`: it is skipped because an upstream
-- job failed.
local function final(job, state, tail, why, blamed)
  if job.state == 'r' then leave(job) end
  job.finished, job.tail = now, tail
  if blamed and not has(job.flags, BLAMED) then job.flags = job.flags + BLAMED end
  move(job, state, why)
  local ext = job.ext
  if ext.run ~= '' and run_of(ext.run) then
    push(to_end, state, '+inf', job.id)
  else
    push(to_end, state, now + (state == 'f' and job.keep_failed or job.keep), job.id)
  end
  if ext.unique ~= '' then let_go(job) end
  if job.flags > 0 or #ext.awaiting > 0 then ended[#ended + 1] = job end
end

-- Return the outcome of a final job for its dependents: a letter, as in a record.
local function letter_of(job)
  if job.state == 'c' then return '+' end
  if job.state == 'f' then return job.ext.soft and '~' or '-' end
  if job.state == 'k' then return has(job.flags, BLAMED) and '-' or 'k' end
  return 'x'
end

local function is_bad(letter)
  return letter == '-' or letter == 'x' or letter == 'k'
end

local function place_of(job, chain)
  for i, name in ipairs(job.ext.after) do
    if name == chain then return i end
  end
end

local resolve, write_awaiting, dependents, settle
do
  -- Decide what happens to a blocked job after a blocker ended with `letter`: skip it, release it, or keep it blocked.
  -- `left`: whether it has open blockers; `failed`: whether an ended blocker failed.
  local function judge(job, letter, left, failed)
    if job.ext.when == 's' and is_bad(letter) then
      final(job, 'k', '', '', letter == '-')
    elseif not left then
      if job.ext.when == 'f' and not failed then
        final(job, 'k', '', '')
      else
        enter(job)
      end
    end
  end

  -- Return the outcomes that a KEYED job received in this script: chains that completed in its run (`good`), and as a list
  -- the other chains and their values in turn.
  local function heard_by(job)
    local heard = arrivals[job.id]
    if not heard then
      heard = { good = {} }
      arrivals[job.id] = heard
      arriving[#arriving + 1] = job
    end
    return heard
  end

  -- Record the outcome of one blocker. Idempotent: only the letter w changes. A KEYED job receives all outcomes of a script
  -- at once, in `land`. `value` is a letter; for a KEYED job the result follows it, or it is '=' for a result that can be
  -- read from the blocker as long as the job exists.
  resolve = function(job, chain, value)
    if job.ext.keyed then
      local heard = heard_by(job)
      if value == '=' then
        heard.good[#heard.good + 1] = chain
      else
        heard[#heard + 1] = chain
        heard[#heard + 1] = value
      end
      return
    end
    local place = place_of(job, chain)
    if not place or string.byte(job.ext.letters, place) ~= 119 then return end
    local letter = string.sub(value, 1, 1)
    if letter == '=' then letter = '+' end
    set_letter(job, place, letter)
    if job.state ~= 'b' then return end
    local letters = job.ext.letters
    judge(job, letter, string.find(letters, 'w', 1, true), string.find(letters, '-', 1, true))
  end

  -- Record all outcomes that a KEYED job received in this script. `upstream` holds the value of each chain, under '' the
  -- number of bad outcomes and under '!' the number of failures. Chains that completed in the job's own run are not stored:
  -- they are the blockers that are in neither `waits` nor `upstream`.
  local function land(job, heard)
    local waits, upstream = 'waits:' .. job.id, SHARD .. 'upstream:' .. job.id
    local names, values, seen, bad, failed, first = {}, {}, {}, 0, 0, '+'
    for i = 1, #heard, MANY do
      local asked = {}
      for k = i, math.min(i + MANY - 1, #heard), 2 do asked[#asked + 1] = heard[k] end
      for k, there in ipairs(redis.call('SMISMEMBER', SHARD .. waits, unpack(asked))) do
        if there == 1 and not seen[asked[k]] then
          seen[asked[k]] = true
          local value = heard[i + 2 * k - 1]
          local letter = string.sub(value, 1, 1)
          names[#names + 1] = asked[k]
          values[#values + 1] = asked[k]
          values[#values + 1] = value
          if is_bad(letter) and first == '+' then first = letter end
          if is_bad(letter) and redis.call('HEXISTS', upstream, asked[k]) == 0 then
            bad = bad + 1
            if letter == '-' then failed = failed + 1 end
          end
        end
      end
    end
    -- The order of the writes matters: _moves.lua.
    for field, by in pairs({ [''] = bad, ['!'] = failed }) do
      if by > 0 then
        values[#values + 1] = field
        values[#values + 1] = tonumber(redis.call('HGET', upstream, field) or 0) + by
      end
    end
    each('HSET', 'upstream:' .. job.id, values)
    local gone = each('SREM', waits, heard.good) + each('SREM', waits, names)
    if job.state ~= 'b' then return end
    local left = redis.call('EXISTS', SHARD .. waits) == 1
    if gone == 0 then
      -- A repeated outcome. If the job has no open blocker and is still blocked, a half-applied script recorded it first.
      if left then return end
      if redis.call('HEXISTS', upstream, '') == 1 then first = redis.call('HEXISTS', upstream, '!') == 1 and '-' or 'x' end
    end
    judge(job, first, left, job.ext.when == 'f' and redis.call('HEXISTS', upstream, '!') == 1)
  end

  write_awaiting = function()
    for chain, list in pairs(to_await) do each('ZADD', 'awaiting:' .. chain, list) end
    to_await = {}
  end

  -- Return the jobs that wait for a job's chain: those of this shard, and those of other shards.
  dependents = function(job)
    if not has(job.flags, AWAITED) then return job.ext.awaiting, NO_EXT.after end
    local here, elsewhere, home = {}, {}, string.match(job.id, '^[^-]*-')
    for _, id in ipairs(job.ext.awaiting) do here[#here + 1] = id end
    for _, id in ipairs(redis.call('ZRANGE', SHARD .. 'awaiting:' .. chain_of(job), 0, -1)) do
      local list = string.sub(id, 1, #home) == home and here or elsewhere
      list[#list + 1] = id
    end
    return here, elsewhere
  end

  local function announce_end(job)
    local chain = chain_of(job)
    if job.ext.next ~= '' then
      if has(job.flags, WATCHED) then say('jobc', job.id) end
    elseif has(job.flags, CHAIN_WATCHED) or has(job.flags, WATCHED) then
      say('chainc', chain)
      if has(job.flags, WATCHED) and chain ~= job.id then say('jobc', job.id) end
    end
  end

  local releasing = {}

  -- Compute the released form of a record and everything that its release changes; false: the fast path does not apply.
  local function look_at_release(raw, run)
    if string.byte(raw) ~= 98 then return false end
    local attempt, _, _, kind, lane, size = struct.unpack('>I4dBI2I2I2', raw, 27)
    local priority, _, due = struct.unpack('>bI8I8', raw, 70)
    if size == 0 or due > now then return false end
    local at = HEAD_SIZE + kind + lane + 1
    local bits, when, length, awaiting, after = struct.unpack(EXT_HEAD, raw, at)
    if after ~= 1 or bits % SOFT ~= 0 or when == 'f' then return false end
    at = at + 5 + length
    if string.sub(raw, at - length, at - 1) ~= run.id then return false end
    for _ = 1, awaiting do at = at + 1 + string.byte(raw, at) end
    if string.byte(raw, at) ~= 119 then return false end
    local where = string.sub(raw, HEAD_SIZE + kind + 1, HEAD_SIZE + kind + lane)
    return { raw = 'p' .. string.sub(raw, 2, at - 1) .. '+' .. string.sub(raw, at + 1), attempt = attempt, lane = where,
      name = string.sub(raw, HEAD_SIZE + 1, HEAD_SIZE + kind), score = digits(due - priority * AGEING),
      blocked = 'b' .. queue_of(where), pending = 'p' .. queue_of(where) }
  end

  -- Release a job whose only blocker completed in its run, without rare fields and without decoding its record. The jobs of
  -- one `map` have equal records, so the result is cached. Returns whether the fast path applied.
  local function release_simple(id, raw, run)
    local known = releasing[raw]
    if known == nil then
      known = look_at_release(raw, run)
      releasing[raw] = known
    end
    if not known then return false end
    patch(id, known.raw)
    local list, name = to_lane[known.lane], known.name
    if not list then
      list = {}
      to_lane[known.lane] = list
    end
    list[#list + 1] = known.score
    list[#list + 1] = id
    add(known.blocked, -1)
    add(known.pending, 1)
    fresh[id] = name
    ready[name] = (ready[name] or 0) + 1
    if known.event then
      moved_alike(run, id, 'b', 'p', known.event)
    else
      moved(run, id, 'b', 'p', true, known.attempt, '')
      known.event = event_head('p', known.attempt, '')
    end
    return true
  end

  -- Record in one dependent that chains of a run completed.
  local function tell_one(id, raw, run, chains, results)
    if raw and release_simple(id, raw, run) then return end
    if raw then jobs[id] = read(id, raw) end
    local other = job_of(id)
    if not other then return end
    -- Jobs of one run are deleted together, so a dependent needs no copy of the result.
    local near = other.ext.run == run.id
    if near and other.ext.keyed then
      local good = heard_by(other).good
      for i = 1, #chains do good[#good + 1] = chains[i] end
    else
      for i = 1, #chains do resolve(other, chains[i], near and '=' or '+' .. results[i]) end
    end
  end

  -- Resolve the dependents of completed jobs of a run that share their dependents: `chains`, `results`.
  local function tell_of_completed(run, awaiting, chains, results)
    local raws = #awaiting > 1 and raw_records(awaiting) or {}
    for _, id in ipairs(awaiting) do tell_one(id, jobs[id] == nil and raws[id], run, chains, results) end
  end

  -- Resolve the dependents of the chain of a job that has ended; those of other shards through the outbox.
  local function tell_dependents(job)
    local here, elsewhere = dependents(job)
    if #here + #elsewhere == 0 then return end
    local chain, letter, run = chain_of(job), letter_of(job), job.ext.run
    local value = letter == '+' and '+' .. job.tail or letter
    for _, id in ipairs(elsewhere) do
      -- Other shards only receive whether it succeeded.
      local told = letter == '+' and value or letter == '~' and '+' or '-'
      redis.call('HSET', SHARD .. 'outbox', id .. ' ' .. chain, told)
      outbox[#outbox + 1] = id
      outbox[#outbox + 1] = chain
      outbox[#outbox + 1] = told
    end
    local lasting = letter == '+' and run ~= '' and run_of(run)
    if lasting then
      tell_of_completed(lasting, here, { chain }, { job.tail })
    else
      fetch(here)
      for _, id in ipairs(here) do
        local other = jobs[id]
        if other then resolve(other, chain, value) end
      end
    end
  end

  local function spread()
    write_awaiting()
    local i = 1
    while ended[i] do
      local job = ended[i]
      if job.chains then
        job.told = true
        tell_of_completed(job.run, job.awaiting, job.chains, job.results)
      else
        if job.flags > 0 then announce_end(job) end
        tell_dependents(job)
      end
      i = i + 1
    end
    ended = {}
  end

  -- Resolve the dependents of all jobs that ended so far, then the dependents of those that this skips, until none is left.
  settle = function()
    spread()
    while arriving[1] do
      local list = arriving
      arriving = {}
      for _, other in ipairs(list) do
        local heard = arrivals[other.id]
        arrivals[other.id] = nil
        land(other, heard)
      end
      spread()
    end
  end
end
