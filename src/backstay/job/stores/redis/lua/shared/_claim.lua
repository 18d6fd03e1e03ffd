-- Purpose: claim pending jobs, smallest rank first, from queues that are not paused and lanes whose labels the worker has
-- and whose rate allows another start. Expects SHARD, now, _record.lua and _moves.lua; call `fill_lanes` before.

-- Lua allows 200 locals in a function, so the helpers are local to this block.
local claim, charge_meters
do
  -- Jobs that one claim parks at most; the next claim parks the rest.
  local PARKS = 1000

  local meters, meter_list = {}, {}

  -- Return the meter of a rate bucket (GCRA): how many jobs may start now. Lanes that share a bucket share its meter.
  local function meter(key, interval, burst)
    local m = meters[key]
    if not m then
      local at = math.max(tonumber(redis.call('GET', SHARD .. key) or 0), now)
      m = { key = key, at = at, interval = interval, burst = burst, used = 0,
        free = math.max(0, math.floor((burst * interval - (at - now)) / interval)) }
      meters[key] = m
      meter_list[#meter_list + 1] = m
    end
    return m
  end

  -- Store the used meters. Returns the µs until a used-up meter allows another start.
  charge_meters = function()
    local soonest
    for _, m in ipairs(meter_list) do
      local at = m.at + m.used * m.interval
      if m.used > 0 then
        redis.call('SET', SHARD .. m.key, digits(at), 'PX', digits(math.ceil((at - now) / 1000) + 1 + spare))
      end
      if m.free <= 0 and m.awaited then
        local wait = math.max(1, at + m.interval - m.burst * m.interval - now)
        if not soonest or wait < soonest then soonest = wait end
      end
    end
    return soonest
  end

  -- Return whether the worker has all labels of a lane, and the lane's meter. A lane is: queue, bucket, interval, burst,
  -- labels.
  local function fits(lane, labels)
    local parts, at = {}, 1
    while true do
      local stop = string.find(lane, '\0', at, true)
      parts[#parts + 1] = string.sub(lane, at, stop and stop - 1)
      if not stop then break end
      at = stop + 1
    end
    for i = 5, #parts do
      if not labels[parts[i]] then return false end
    end
    return true, parts[2] ~= '' and meter('rate:' .. #parts[2] .. ':' .. parts[2], tonumber(parts[3]), tonumber(parts[4]))
  end

  local function lanes_of(group, labels)
    local fields, found = {}, {}
    for _, queue in ipairs(group) do
      fields[#fields + 1] = 'p' .. queue
      fields[#fields + 1] = 'r' .. queue
    end
    local settings = redis.call('HMGET', SHARD .. 'queues', unpack(fields))
    for i, queue in ipairs(group) do
      if not settings[2 * i - 1] then
        local limit
        if settings[2 * i] then
          local interval, burst = string.match(settings[2 * i], '^(%d+) (%d+)')
          limit = meter('queue-rate:' .. queue, tonumber(interval), tonumber(burst))
        end
        for _, lane in ipairs(redis.call('SMEMBERS', SHARD .. 'lanes:' .. queue)) do
          local fit, rate = fits(lane, labels)
          if fit and not from_lane[lane] then
            found[#found + 1] = { lane = lane, queue = queue, limit = limit, rate = rate, items = {}, at = 1, read = 0, used = {} }
          end
        end
      end
    end
    return found
  end

  -- Read the next items of a lane: ids and ranks in turn.
  local function look(source, chunk)
    source.items = redis.call('ZRANGE', SHARD .. 'lane:' .. source.lane, source.read, source.read + chunk - 1, 'WITHSCORES')
    source.at = 1
    source.read = source.read + #source.items / 2
    source.all = #source.items < 2 * chunk
    for i = 2, #source.items, 2 do source.items[i] = tonumber(source.items[i]) end
  end

  -- Read the next ids of a single lane without a rate: there are no ranks to compare.
  local function head_of(source, n)
    local ids = redis.call('ZRANGE', SHARD .. 'lane:' .. source.lane, source.read, source.read + n - 1)
    source.read = source.read + #ids
    source.all = #ids < n
    for _, id in ipairs(ids) do source.used[#source.used + 1] = id end
    return ids
  end

  -- Return the lane with the smallest next rank, among those whose rates allow another start.
  local function smallest(sources, chunk)
    local best, best_rank, best_id
    for _, source in ipairs(sources) do
      if not (source.limit and source.limit.free <= 0) and not (source.rate and source.rate.free <= 0) then
        if source.at > #source.items and not source.all then look(source, chunk) end
        local id, score = source.items[source.at], source.items[source.at + 1]
        if id and (not best or score < best_rank or (score == best_rank and id < best_id)) then
          best, best_rank, best_id = source, score, id
        end
      end
    end
    return best
  end

  local function spend(source, n)
    if source.limit then source.limit.free, source.limit.used = source.limit.free - n, source.limit.used + n end
    if source.rate then source.rate.free, source.rate.used = source.rate.free - n, source.rate.used + n end
  end

  -- Whether the concurrency key of a job has room. If not, park the job.
  local function admitted(job, full)
    local key = job.ext.key
    if key == '' then return true end
    local n = full[key] or running_of(key)
    if n >= job.ext.limit then
      full[key] = n
      park(job)
      return false
    end
    running[key], full[key] = n + 1, nil
    return true
  end

  -- Whether an ext has no rare fields, so that a claim need not decode it. Many records of a run are equal: cached.
  local simple = {}

  local function is_simple(raw)
    local answer = simple[raw]
    if answer == nil then
      local kind, lane = struct.unpack('>I2I2', raw, 40)
      answer = string.byte(raw, HEAD_SIZE + kind + lane + 1) % 2 ~= RARE
      simple[raw] = answer
    end
    return answer
  end

  -- Claim up to `want` jobs: adds their ids to `taken`, and the raw records of plain ones to `plain`. Returns whether it
  -- stopped because it parked too many.
  claim = function(groups, labels, want, taken, plain)
    local full, parked = {}, 0
    for _, group in ipairs(groups) do
      if #taken >= want or parked >= PARKS or #group == 0 then break end
      local sources = lanes_of(group, labels)
      local chunk = math.min(want, math.ceil(want / math.max(1, #sources)) + 1)
      local only = #sources == 1 and not sources[1].limit and not sources[1].rate and sources[1]
      while #taken < want and parked < PARKS do
        local ids, from = {}, {}
        if only and not only.all then ids = head_of(only, want - #taken) end
        while not only and #ids < want - #taken do
          local source = smallest(sources, chunk)
          if not source then break end
          ids[#ids + 1], from[#ids + 1] = source.items[source.at], source
          source.used[#source.used + 1] = source.items[source.at]
          source.at = source.at + 2
          spend(source, 1)
        end
        if #ids == 0 then break end
        local raws = raw_records(ids)
        for i, id in ipairs(ids) do
          local job, raw, source = jobs[id], raws[id], only or from[i]
          if job == nil and raw then
            local size, rest = string.byte(raw, 44, 45)
            if string.byte(raw) == 112 and ((size == 0 and rest == 0) or is_simple(raw)) then
              plain[id] = raw
              add('p' .. source.queue, -1)
              add('r' .. source.queue, 1)
            else
              job = job_of(id)
            end
          end
          -- A stale entry, whose job is in another state, leaves the lane as well, so that it hides no job.
          if plain[id] or (job and job.state == 'p' and admitted(job, full)) then
            taken[#taken + 1] = id
          else
            spend(source, -1)
            parked = parked + 1
          end
        end
      end
      for _, source in ipairs(sources) do
        if #source.used > 0 or (source.all and source.read == 0) then from_lane[source.lane] = source.used end
        if not source.all or #source.used < source.read then
          if source.limit then source.limit.awaited = true end
          if source.rate then source.rate.awaited = true end
        end
      end
    end
    return parked >= PARKS
  end
end
