-- Purpose: claim pending jobs, smallest rank first. Skips paused queues, lanes with a label that the worker does not
-- have, and lanes whose rate allows no further start now. Call `write_lanes` first, so that jobs which became pending
-- in this script are found. Expects SHARD, now, permits (exchange.lua), _record.lua and _transitions.lua.

-- A Lua function may have at most 200 locals, and this file is included into a larger function. So only these three are
-- locals of that function; the helpers are locals of the block `do … end`.
local claim, write_meters, list_permits
do
-- include: _meter.lua
  -- The largest number of jobs that one claim parks, because their concurrency key is full (_transitions.lua). The next
  -- claim parks further ones.
  local MAX_PARKED = 1000

  -- The meters of this claim, by key and as a list. A meter counts how many jobs a rate limit still lets start.
  local meters, meter_list = {}, {}
  -- Cursors over lanes with pending jobs that need permits of another shard (`open_lanes`). is_stopped: the next job
  -- needs such permits, and the caller has not asked for them yet.
  local starved, is_stopped = {}, false
  -- A longer pause comes from a clock that was set back; it is ignored (µs).
  local MAX_PAUSE = 1000000

  -- Return the number of the shard that stores the meter of a rate. `name`: the rate's bucket or queue. `rate_shard` in
  -- ids.py computes the same.
  local function find_home(name)
    if ARGV[2] == '1' then return 0 end
    return tonumber(string.sub(redis.sha1hex(name), 1, 8), 16) % tonumber(ARGV[2])
  end

  local this_shard = tonumber(string.match(KEYS[1], ':s(%x+)}:meta$'), 16)

  -- Return the meter of a rate. Its field `free`: how many jobs may still start; `used`: how many jobs this claim
  -- starts; `home`: the shard that stores the meter, if it is another one. Then the permits that the caller has taken
  -- there let jobs start. `is_unasked`: the caller has not asked for permits yet. `pause`: µs for which it does not ask
  -- again. `interval`: µs between two starts. `burst`: starts allowed at once. Lanes with the same bucket share its
  -- meter.
  local function get_meter(key, name, interval, burst)
    local m = meters[key]
    if not m then
      local home = find_home(name)
      if home == this_shard then
        m = read_meter(key, interval, burst)
        m.free = count_free(m)
      else
        local pause = pauses[key] and pauses[key] - now or 0
        m = { key = key, home = home, interval = interval, burst = burst, used = 0, free = permits[key] or 0,
          pause = pause > 0 and pause <= MAX_PAUSE and pause }
        m.is_unasked = not batch and not m.pause
      end
      meters[key] = m
      meter_list[#meter_list + 1] = m
    end
    return m
  end

  -- Store the state of this shard's rate limits (meters) from which this claim started jobs. Returns the µs until the
  -- first exhausted rate limit may let a waiting job start; nil if no job waits for a rate limit whose wait is known.
  write_meters = function()
    local soonest
    for _, m in ipairs(meter_list) do
      if m.used > 0 and not m.home then write_meter(m) end
      if m.free <= 0 and m.awaited then
        local wait = m.pause
        if not m.home then wait = find_wait(m) end
        if wait and (not soonest or wait < soonest) then soonest = wait end
      end
    end
    return soonest
  end

  -- Return two lists. The first names the permits of other shards that would let further jobs start. It has an entry for
  -- each lane: {number of jobs, meter, …}, where a meter is {key, its shard, interval, burst}; a job needs a permit of
  -- each meter. The second, a flat list, names the permits that this claim has used: key of the meter, number, …
  -- `want`: how many more jobs the worker wants. A lane that also waits for a rate of this shard, or for one of which
  -- the caller does not ask for permits, is not listed.
  list_permits = function(want)
    local wanted, used = {}, {}
    for _, source in ipairs(starved) do
      local entry = { math.min(want, redis.call('ZCARD', SHARD .. 'lane:' .. source.lane) - #source.taken) }
      for _, m in ipairs(source.meters) do
        if not m.home then entry[1] = math.min(entry[1], m.free) end
        if m.pause then entry[1] = 0 end
        if m.home then entry[#entry + 1] = { m.key, m.home, m.interval, m.burst } end
      end
      if entry[1] > 0 then wanted[#wanted + 1] = entry end
    end
    for _, m in ipairs(meter_list) do
      if m.home and m.used > 0 then
        used[#used + 1] = m.key
        used[#used + 1] = m.used
      end
    end
    return wanted, used
  end

  -- Return whether the worker has all labels of a lane, and the meter of the lane's rate (false: the lane has no rate).
  -- A lane's name consists of queue, bucket, interval, burst and labels, separated by NUL.
  local function worker_fits(lane, labels)
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
    local bucket, interval, burst = parts[2], tonumber(parts[3]), tonumber(parts[4])
    return true, bucket ~= '' and get_meter('rate:' .. #bucket .. ':' .. bucket, bucket, interval, burst)
  end

  -- Return a source for each lane that the worker may take from, in the queues of a group. A source is a cursor over a
  -- lane. Its fields: `items`, the page last read (ids and ranks in turn); `at`, the position in that page;
  -- `read_count`, how many entries of the lane were read; `taken`, the ids to remove from the lane; `all`, whether the
  -- whole lane was read; `meters`, those of the lane's own rate and of the queue's rate, if any.
  local function open_lanes(group, labels)
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
          limit = get_meter('queue-rate:' .. queue, queue, tonumber(interval), tonumber(burst))
        end
        for _, lane in ipairs(redis.call('SMEMBERS', SHARD .. 'lanes:' .. queue)) do
          local fit, rate = worker_fits(lane, labels)
          if fit and not from_lane[lane] then
            local both = { rate or limit, rate and limit or nil }
            found[#found + 1] = { lane = lane, queue = queue, meters = both, items = {}, at = 1, read_count = 0,
              taken = {} }
          end
        end
      end
    end
    return found
  end

  -- Read the next page of a lane, at most `chunk` entries, into `source.items`: ids and ranks in turn.
  local function read_lane(source, chunk)
    local last = source.read_count + chunk - 1
    source.items = redis.call('ZRANGE', SHARD .. 'lane:' .. source.lane, source.read_count, last, 'WITHSCORES')
    source.at = 1
    source.read_count = source.read_count + #source.items / 2
    source.all = #source.items < 2 * chunk
    for i = 2, #source.items, 2 do source.items[i] = tonumber(source.items[i]) end
  end

  -- Return the next `n` ids of a lane and mark them as taken. Only for a claim that reads a single lane: then the order
  -- of the lane is the order of the claim, and no ranks need to be compared.
  local function read_head(source, n)
    local ids = redis.call('ZRANGE', SHARD .. 'lane:' .. source.lane, source.read_count, source.read_count + n - 1)
    source.read_count = source.read_count + #ids
    source.all = #ids < n
    for _, id in ipairs(ids) do source.taken[#source.taken + 1] = id end
    return ids
  end

  -- Return whether the rates of a source allow another start, and whether this depends on permits that the caller has
  -- not asked for yet.
  local function may_start(source)
    local needs_permits = false
    for _, m in ipairs(source.meters) do
      if m.is_unasked then
        needs_permits = true
      elseif m.free <= 0 then
        return false
      end
    end
    return true, needs_permits
  end

  -- Return the source whose next job has the smallest rank, among those whose rates allow another start. Return nil if
  -- that job needs permits which the caller has not asked for yet: a job after it must not be claimed before it. The
  -- second request of the exchange goes on there.
  local function find_smallest(sources, chunk)
    local best, best_rank, best_id, best_needs_permits
    for _, source in ipairs(sources) do
      local is_allowed, needs_permits = may_start(source)
      if is_allowed then
        if source.at > #source.items and not source.all then read_lane(source, chunk) end
        local id, score = source.items[source.at], source.items[source.at + 1]
        if id and (not best or score < best_rank or (score == best_rank and id < best_id)) then
          best, best_rank, best_id, best_needs_permits = source, score, id, needs_permits
        end
      end
    end
    if not best_needs_permits then return best end
    is_stopped = true
  end

  -- Count n starts against the rate limits of a lane and of its queue; a negative n takes them back.
  local function charge(source, n)
    for _, m in ipairs(source.meters) do m.free, m.used = m.free - n, m.used + n end
  end

  -- Return whether one more job with this job's concurrency key may run; if not, park the job. `full`: a cache of the
  -- keys that this claim found full, with the number of running jobs of each.
  local function admit_or_park(job, full)
    local key = job.ext.key
    if key == '' then return true end
    local n = full[key] or get_running(key)
    if n >= job.ext.limit then
      full[key] = n
      park(job)
      return false
    end
    running[key], full[key] = n + 1, nil
    return true
  end

  local simple = {}

  -- Whether a raw record has no rare fields (RARE in _record.lua), so that a claim need not decode it. The answer is
  -- cached by the whole record, since many pending jobs of a run have equal records.
  local function is_simple(raw)
    local answer = simple[raw]
    if answer == nil then
      local kind, lane = struct.unpack('>I2I2', raw, 40)
      answer = string.byte(raw, HEAD_SIZE + kind + lane + 1) % 2 ~= RARE
      simple[raw] = answer
    end
    return answer
  end

  -- Claim up to `want` jobs.
  --   * groups: lists of queue names, searched in this order
  --   * labels: the set of the worker's labels
  --   * taken: the list to which the ids of the claimed jobs are added
  --   * plain: the table to which the raw records of claimed jobs without rare fields are added, by job id
  -- Returns whether the claim stopped early, at MAX_PARKED; then the worker should claim again at once.
  claim = function(groups, labels, want, taken, plain)
    local full, parked = {}, 0
    for _, group in ipairs(groups) do
      if #taken >= want or parked >= MAX_PARKED or #group == 0 or is_stopped then break end
      local sources = open_lanes(group, labels)
      local chunk = math.min(want, math.ceil(want / math.max(1, #sources)) + 1)
      local only = #sources == 1 and #sources[1].meters == 0 and sources[1]
      while #taken < want and parked < MAX_PARKED do
        local ids, from = {}, {}
        if only and not only.all then ids = read_head(only, want - #taken) end
        while not only and #ids < want - #taken do
          local source = find_smallest(sources, chunk)
          if not source then break end
          ids[#ids + 1], from[#ids + 1] = source.items[source.at], source
          source.taken[#source.taken + 1] = source.items[source.at]
          source.at = source.at + 2
          charge(source, 1)
        end
        if #ids == 0 then break end
        local raws = fetch_raw(ids)
        for i, id in ipairs(ids) do
          local job, raw, source = jobs[id], raws[id], only or from[i]
          if job == nil and raw then
            local size, rest = string.byte(raw, 44, 45)
            if string.byte(raw) == 112 and ((size == 0 and rest == 0) or is_simple(raw)) then
              plain[id] = raw
              change_count('p' .. source.queue, -1)
              change_count('r' .. source.queue, 1)
            else
              job = get_job(id)
            end
          end
          -- A lane entry may be stale: its job is not pending. It is not claimed, but it stays in `source.taken` and so
          -- is removed from the lane. Otherwise every later claim would read it.
          if plain[id] or (job and job.state == 'p' and admit_or_park(job, full)) then
            taken[#taken + 1] = id
          else
            charge(source, -1)
            parked = parked + 1
          end
        end
      end
      for _, source in ipairs(sources) do
        if #source.taken > 0 or (source.all and source.read_count == 0) then from_lane[source.lane] = source.taken end
        if not source.all or #source.taken < source.read_count then
          local needs_permits = false
          for _, m in ipairs(source.meters) do
            m.awaited = true
            needs_permits = needs_permits or m.home
          end
          if needs_permits then starved[#starved + 1] = source end
        end
      end
    end
    return parked >= MAX_PARKED
  end
end
