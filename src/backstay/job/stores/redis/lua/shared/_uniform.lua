-- Purpose: claim and complete jobs that have an ext without rare fields, without decoding their records. The jobs of one
-- `map` have equal records except for the fields that an attempt writes into the head, so the analysis of a record is
-- cached. Part of exchange.lua.

local start_alike, finish_alike
do
  local sub, byte, pack, read = string.sub, string.byte, struct.pack, struct.unpack
  local starting, ending = {}, {}

  -- Request the results of a record's completed blockers. `at`: offset of its ext.
  local function want_upstream(raw, at)
    local _, _, size, awaiting, after = read(EXT_HEAD, raw, at)
    if after == 0 then return end
    at = at + 5 + size
    for _ = 1, awaiting do at = at + 1 + byte(raw, at) end
    local letter = at
    at = at + after
    for i = 0, after - 1 do
      local name
      name, at = read('>Bc0', raw, at)
      if byte(raw, letter + i) == 43 then want_result(name) end
    end
  end

  -- Compute the part of a record after its fence once it is claimed, and its run.
  local function look_at_start(raw)
    local attempt, _, _, kind, lane, ext = read('>I4dBI2I2I2', raw, 27)
    local at = HEAD_SIZE + kind + lane + 1
    local bits, _, size = read(EXT_HEAD, raw, at)
    want_upstream(raw, at)
    return { attempt = attempt + 1, keyed = has(bits, KEYED), run = size > 0 and run_of(sub(raw, at + 5, at + 4 + size)),
      rest = pack('>I8I8I4d', 0, now, attempt + 1, 0) .. sub(raw, QUICK_SIZE + 1, at + ext - 1) .. worker
        .. sub(raw, at + ext) }
  end

  -- Claim a job, the one at this position of the claimed jobs, and add the event to its run.
  start_alike = function(id, raw, place, fence)
    local known = starting[raw]
    if not known then
      known = look_at_start(raw)
      starting[raw] = known
    end
    if known.keyed then keyed[#keyed + 1] = place end
    if known.event then
      moved_alike(known.run, id, 'p', 'r', known.event)
    elseif known.run then
      moved(known.run, id, 'p', 'r', true, known.attempt, worker)
      known.event = event_head('r', known.attempt, worker)
    end
    patch(id, pack('>c1BI8', 'r', #worker, fence) .. known.rest)
  end

  -- Compute the part of a record after its fence once it is completed, its run and its dependents; false: the fast path does
  -- not apply.
  local function look_at_end(raw, name)
    local attempt, _, flags, kind, lane, ext, keep = read('>I4dBI2I2I2I8', raw, 27)
    local at = HEAD_SIZE + kind + lane
    if flags ~= 0 or byte(raw, at + 1) % 2 == RARE then return false end
    local _, _, size, awaiting = read(EXT_HEAD, raw, at + 1)
    local run = size > 0 and run_of(sub(raw, at + 6, at + 5 + size))
    local queue, stop = queue_of(sub(raw, HEAD_SIZE + kind + 1, at)), at + ext + name
    return { name = name, head = 'c' .. sub(raw, 2, 2), rest = moment .. sub(raw, 19, stop), attempt = attempt, run = run,
      worker = sub(raw, at + ext + 1, stop), running = 'r' .. queue, completed = 'c' .. queue,
      stays = run and '+inf' or digits(now + keep), awaiting = (names_of(raw, at + 6 + size, awaiting)) }
  end

  -- Complete a job, as `final` does. Returns whether the fast path applied; if not, nothing changed.
  finish_alike = function(id, raw, fence, result)
    local rest, name = sub(raw, 11), byte(raw, 2)
    local known = ending[rest]
    if known == nil then
      known = look_at_end(raw, name)
      ending[rest] = known
    end
    if not known or known.name ~= name then return false end
    patch(id, known.head .. fence .. known.rest .. result)
    add(known.running, -1)
    add(known.completed, 1)
    from_lease[#from_lease + 1] = id
    local list = to_end.c
    list[#list + 1] = known.stays
    list[#list + 1] = id
    local run = known.run
    if known.event then
      moved_alike(run, id, 'r', 'c', known.event)
    elseif run then
      moved(run, id, 'r', 'c', true, known.attempt, known.worker)
      known.event = event_head('c', known.attempt, known.worker)
    end
    if known.awaiting[1] then
      local group = known.group
      if not group or group.told then
        group = { run = run, awaiting = known.awaiting, chains = {}, results = {} }
        known.group = group
        ended[#ended + 1] = group
      end
      local n = #group.chains + 1
      group.chains[n], group.results[n] = id, result
    end
    return true
  end
end
