-- Purpose: fast paths that claim and complete jobs without decoding their records. They apply to jobs whose ext has no
-- rare fields (_record.lua). The jobs of one `flow.map` have equal records, apart from the first fields, which change
-- with each attempt. So one of these records is analysed, and the result is used for all of them. Part of exchange.lua.

local start_uniform, complete_uniform
do
  local sub, byte, pack_fields, unpack_fields = string.sub, string.byte, struct.pack, struct.unpack
  -- Caches. starts: the results of `analyse_start`, by raw record. completions: the results of `analyse_completion`,
  -- by the part of the raw record after its field `fence`, because each running job has another fence.
  local starts, completions = {}, {}

  -- Add the results of a job's completed blockers to the reply that the worker gets. `raw`: the job's raw record. `at`:
  -- the offset in it at which the ext (_record.lua) begins.
  local function request_upstream(raw, at)
    local _, _, size, awaiting, after = unpack_fields(EXT_HEAD, raw, at)
    if after == 0 then return end
    at = at + 5 + size
    for _ = 1, awaiting do at = at + 1 + byte(raw, at) end
    local outcomes_at = at
    at = at + after
    for i = 0, after - 1 do
      local name
      name, at = unpack_fields('>Bc0', raw, at)
      if byte(raw, outcomes_at + i) == 43 then request_result(name) end
    end
  end

  -- Compute from a pending job's raw record what a claim of the job changes. In the returned table, `rest` is the new
  -- record without its first fields (state, size of the worker's name, fence).
  local function analyse_start(raw)
    local attempt, _, _, kind, lane, ext = unpack_fields('>I4dBI2I2I2', raw, 27)
    local at = HEAD_SIZE + kind + lane + 1
    local bits, _, size = unpack_fields(EXT_HEAD, raw, at)
    request_upstream(raw, at)
    return { attempt = attempt + 1, separate_waits = has(bits, SEPARATE_WAITS),
      run = size > 0 and get_run(sub(raw, at + 5, at + 4 + size)),
      rest = pack_fields('>I8I8I4d', 0, now, attempt + 1, 0) .. sub(raw, ATTEMPT_SIZE + 1, at + ext - 1) .. worker
        .. sub(raw, at + ext) }
  end

  -- Claim a job, and add an event to its run if it has one. `raw`: its raw record. `position`: its position in `taken`,
  -- the list of claimed jobs. `fence`: the fence of the claim.
  start_uniform = function(id, raw, position, fence)
    local known = starts[raw]
    if not known then
      known = analyse_start(raw)
      starts[raw] = known
    end
    if known.separate_waits then separate[#separate + 1] = position end
    if known.event then
      count_uniform_transition(known.run, id, 'p', 'r', known.event)
    elseif known.run then
      count_transition(known.run, id, 'p', 'r', true, known.attempt, worker)
      known.event = encode_event_head('r', known.attempt, worker)
    end
    patch(id, pack_fields('>c1BI8', 'r', #worker, fence) .. known.rest)
  end

  -- Compute from a running job's raw record what its completion changes. `worker_size`: the size of the worker's name
  -- in bytes. Returns false if the fast path does not apply, otherwise a table. In it, `rest` is the part of the new
  -- record after the fence and before the result; `expires` is the job's score in the index `end:c`.
  local function analyse_completion(raw, worker_size)
    local attempt, _, flags, kind, lane, ext, keep = unpack_fields('>I4dBI2I2I2I8', raw, 27)
    local at = HEAD_SIZE + kind + lane
    if flags ~= 0 or byte(raw, at + 1) % 2 == RARE then return false end
    local _, _, size, awaiting = unpack_fields(EXT_HEAD, raw, at + 1)
    local run = size > 0 and get_run(sub(raw, at + 6, at + 5 + size))
    local queue, stop = queue_of(sub(raw, HEAD_SIZE + kind + 1, at)), at + ext + worker_size
    return { worker_size = worker_size, head = 'c' .. sub(raw, 2, 2), rest = packed_now .. sub(raw, 19, stop),
      attempt = attempt, run = run, worker = sub(raw, at + ext + 1, stop), running = 'r' .. queue,
      completed = 'c' .. queue, expires = run and '+inf' or format_int(now + keep),
      awaiting = (read_names(raw, at + 6 + size, awaiting)) }
  end

  -- Complete a job, with the effects of `end_job`. `raw`: its raw record. `fence`: its fence, encoded in eight bytes as
  -- in a record. `result`: its encoded result. Returns whether the fast path applied; if not, nothing is changed.
  complete_uniform = function(id, raw, fence, result)
    local rest, worker_size = sub(raw, 11), byte(raw, 2)
    local known = completions[rest]
    if known == nil then
      known = analyse_completion(raw, worker_size)
      completions[rest] = known
    end
    if not known or known.worker_size ~= worker_size then return false end
    patch(id, known.head .. fence .. known.rest .. result)
    change_count(known.running, -1)
    change_count(known.completed, 1)
    from_lease[#from_lease + 1] = id
    local list = to_end.c
    list[#list + 1] = known.expires
    list[#list + 1] = id
    local run = known.run
    if known.event then
      count_uniform_transition(run, id, 'r', 'c', known.event)
    elseif run then
      count_transition(run, id, 'r', 'c', true, known.attempt, known.worker)
      known.event = encode_event_head('c', known.attempt, known.worker)
    end
    -- Completed jobs with the same dependents form one group, a single item of `ended_jobs`. `resolve_all` handles the
    -- group in one step.
    if known.awaiting[1] then
      local group = known.group
      if not group or group.resolved then
        group = { run = run, awaiting = known.awaiting, chains = {}, results = {} }
        known.group = group
        ended_jobs[#ended_jobs + 1] = group
      end
      local n = #group.chains + 1
      group.chains[n], group.results[n] = id, result
    end
    return true
  end
end
