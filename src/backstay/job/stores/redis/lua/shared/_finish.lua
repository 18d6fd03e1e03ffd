-- Purpose: make jobs final, and release or skip the jobs that wait for them. Part of _transitions.lua.

-- Make a job final and collect it in `ended_jobs`; a later `resolve_all` releases or skips its dependents. `state`: 'c'
-- (completed), 'f' (failed), 'x' (cancelled) or 'k' (skipped). `tail`: the encoded result or failure. `why`: the
-- message for the run's event. `upstream_failed`: whether the job is skipped because a job that it depends on failed.
local function end_job(job, state, tail, why, upstream_failed)
  if job.state == 'r' then end_lease(job) end
  job.finished, job.tail = now, tail
  if upstream_failed and not has(job.flags, UPSTREAM_FAILED) then job.flags = job.flags + UPSTREAM_FAILED end
  change_state(job, state, why)
  local ext = job.ext
  if ext.run ~= '' and get_run(ext.run) then
    push(to_end, state, '+inf', job.id)
  else
    push(to_end, state, now + (state == 'f' and job.keep_failed or job.keep), job.id)
  end
  if ext.unique ~= '' then free_unique(job) end
  if job.flags > 0 or #ext.awaiting > 0 then ended_jobs[#ended_jobs + 1] = job end
end

-- Return the outcome letter (_record.lua) that the dependents of a final job see.
local function outcome_of(job)
  if job.state == 'c' then return '+' end
  if job.state == 'f' then return job.ext.soft and '~' or '-' end
  if job.state == 'k' then return has(job.flags, UPSTREAM_FAILED) and '-' or 'k' end
  return 'x'
end

-- Whether this outcome of a blocker is bad: a job that starts only after success (all_success) is then skipped.
local function is_bad(outcome)
  return outcome == '-' or outcome == 'x' or outcome == 'k'
end

-- Return the position of a chain among the blockers that a job's record names; nil if it is not among them.
local function find_blocker(job, chain)
  for i, name in ipairs(job.ext.after) do
    if name == chain then return i end
  end
end

local resolve, write_awaiting, get_dependents, resolve_all
do
  -- Skip or release a blocked job after one of its blockers ended, or leave it blocked. `outcome`: that blocker's
  -- outcome letter. `left`: whether the job has blockers that have not ended. `failed`: whether one of its blockers
  -- failed.
  local function skip_or_release(job, outcome, left, failed)
    if job.ext.when == 's' and is_bad(outcome) then
      end_job(job, 'k', '', '', outcome == '-')
    elseif not left then
      if job.ext.when == 'f' and not failed then
        end_job(job, 'k', '', '')
      else
        make_pending(job)
      end
    end
  end

  -- For a job whose blockers are stored in keys of their own (SEPARATE_WAITS in _record.lua): return the table in which
  -- this script collects the outcomes of the job's blockers, until `apply_received` writes them. The field `completed`
  -- lists the ids of the blockers that completed and belong to the same run as the job. The array part has two entries
  -- for each other blocker that ended: its chain id and its value (see `resolve`).
  local function get_received(job)
    local received = received_outcomes[job.id]
    if not received then
      received = { completed = {} }
      received_outcomes[job.id] = received
      receivers[#receivers + 1] = job
    end
    return received
  end

  -- Record the outcome of one blocker of a job; then skip or release the job, or leave it blocked. Idempotent: a
  -- blocker whose outcome is already recorded is left unchanged. If the job's blockers are stored in keys of their own
  -- (SEPARATE_WAITS in _record.lua), this only collects the outcome, and `apply_received` later records all collected
  -- outcomes at once.
  -- `chain`: the blocker's id. `value`: '=' if the blocker completed and belongs to the same run as the job, so that
  -- its result can be read from its record; '+<result>' if any other blocker completed; otherwise the blocker's outcome
  -- letter (_record.lua).
  resolve = function(job, chain, value)
    if job.ext.separate_waits then
      local received = get_received(job)
      if value == '=' then
        received.completed[#received.completed + 1] = chain
      else
        received[#received + 1] = chain
        received[#received + 1] = value
      end
      return
    end
    local position = find_blocker(job, chain)
    if not position or string.byte(job.ext.outcomes, position) ~= 119 then return end
    local outcome = string.sub(value, 1, 1)
    if outcome == '=' then outcome = '+' end
    set_outcome(job, position, outcome)
    if job.state ~= 'b' then return end
    local outcomes = job.ext.outcomes
    skip_or_release(job, outcome, string.find(outcomes, 'w', 1, true), string.find(outcomes, '-', 1, true))
  end

  -- Record the outcomes that `get_received` collected for a job; then skip or release the job, or leave it blocked. The
  -- set `waits:<job>` holds the blockers that have not ended. The hash `upstream:<job>` holds the value (see `resolve`)
  -- of each blocker that ended, by chain; its field '' counts bad outcomes (`is_bad`), its field '!' counts failures. A
  -- blocker that completed and belongs to the same run as the job is in neither key: its result is read from its
  -- record.
  -- `received`: the table of `get_received`.
  local function apply_received(job, received)
    local waits, upstream = 'waits:' .. job.id, SHARD .. 'upstream:' .. job.id
    local names, values, seen, bad, failed, first_bad = {}, {}, {}, 0, 0, '+'
    for i = 1, #received, MAX_ARGS do
      local chains = {}
      for k = i, math.min(i + MAX_ARGS - 1, #received), 2 do chains[#chains + 1] = received[k] end
      for k, is_open in ipairs(redis.call('SMISMEMBER', SHARD .. waits, unpack(chains))) do
        if is_open == 1 and not seen[chains[k]] then
          seen[chains[k]] = true
          local value = received[i + 2 * k - 1]
          local outcome = string.sub(value, 1, 1)
          names[#names + 1] = chains[k]
          values[#values + 1] = chains[k]
          values[#values + 1] = value
          if is_bad(outcome) and first_bad == '+' then first_bad = outcome end
          if is_bad(outcome) and redis.call('HEXISTS', upstream, chains[k]) == 0 then
            bad = bad + 1
            if outcome == '-' then failed = failed + 1 end
          end
        end
      end
    end
    -- Add the outcomes to `upstream:<job>` before the blockers are removed from `waits:<job>`. In the other order, a
    -- half-applied script (_transitions.lua) could lose an outcome.
    for field, by in pairs({ [''] = bad, ['!'] = failed }) do
      if by > 0 then
        values[#values + 1] = field
        values[#values + 1] = tonumber(redis.call('HGET', upstream, field) or 0) + by
      end
    end
    call_batched('HSET', 'upstream:' .. job.id, values)
    local removed = call_batched('SREM', waits, received.completed) + call_batched('SREM', waits, names)
    if job.state ~= 'b' then return end
    local left = redis.call('EXISTS', SHARD .. waits) == 1
    if removed == 0 then
      -- Nothing was removed from `waits:<job>`, so an earlier script has already recorded all outcomes in `received`.
      -- If the job is still blocked although it has no open blocker, that script was half-applied (_transitions.lua):
      -- it recorded the outcomes but did not release the job. Release it now.
      if left then return end
      if redis.call('HEXISTS', upstream, '') == 1 then
        first_bad = redis.call('HEXISTS', upstream, '!') == 1 and '-' or 'x'
      end
    end
    skip_or_release(job, first_bad, left, job.ext.when == 'f' and redis.call('HEXISTS', upstream, '!') == 1)
  end

  -- Write the new dependents that this script collected in `to_await`, so that `get_dependents` finds them.
  write_awaiting = function()
    for chain, list in pairs(to_await) do call_batched('ZADD', 'awaiting:' .. chain, list) end
    to_await = {}
  end

  -- Return two lists: the ids of the jobs of this shard that wait for a job's chain, and the ids of the jobs of other
  -- shards that wait for it.
  get_dependents = function(job)
    if not has(job.flags, AWAITED) then return job.ext.awaiting, NO_EXT.after end
    local local_ids, remote_ids, home = {}, {}, string.match(job.id, '^[^-]*-')
    for _, id in ipairs(job.ext.awaiting) do local_ids[#local_ids + 1] = id end
    for _, id in ipairs(redis.call('ZRANGE', SHARD .. 'awaiting:' .. chain_of(job), 0, -1)) do
      local list = string.sub(id, 1, #home) == home and local_ids or remote_ids
      list[#list + 1] = id
    end
    return local_ids, remote_ids
  end

  -- Announce the end of a job to the clients that wait for the job (JOB_WATCHED) or for its chain (CHAIN_WATCHED). If
  -- another job continues the chain, the chain has not ended, and only the end of the job is announced.
  local function announce_end(job)
    local chain = chain_of(job)
    if job.ext.next ~= '' then
      if has(job.flags, JOB_WATCHED) then publish_later('jobc', job.id) end
    elseif has(job.flags, CHAIN_WATCHED) or has(job.flags, JOB_WATCHED) then
      publish_later('chainc', chain)
      if has(job.flags, JOB_WATCHED) and chain ~= job.id then publish_later('jobc', job.id) end
    end
  end

  -- A cache of the results of `analyse_release`. The key is the job's encoded record.
  local releases = {}

  -- Compute what changes when the only blocker of a blocked job completes. `raw`: the job's encoded record. `run`: the
  -- blocker's run. Returns a table that `release_uniform` applies to all jobs with an equal record; its field `raw` is
  -- the encoded record of the job once it is pending. Returns false if `release_uniform` cannot release this job.
  local function analyse_release(raw, run)
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
      name = string.sub(raw, HEAD_SIZE + 1, HEAD_SIZE + kind), score = format_int(due - priority * AGEING),
      blocked = 'b' .. queue_of(where), pending = 'p' .. queue_of(where) }
  end

  -- Fast path: release a blocked job without decoding its record. It applies to a job whose only blocker completed and
  -- belongs to the same run, and whose record has no rare fields (_record.lua: unique key, concurrency key, chain). The
  -- jobs of one `flow.map` have equal records, so the result of `analyse_release` is cached by record. Returns whether
  -- the job was released.
  local function release_uniform(id, raw, run)
    local known = releases[raw]
    if known == nil then
      known = analyse_release(raw, run)
      releases[raw] = known
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
    change_count(known.blocked, -1)
    change_count(known.pending, 1)
    made_pending[id] = name
    ready[name] = (ready[name] or 0) + 1
    if known.event then
      count_uniform_transition(run, id, 'b', 'p', known.event)
    else
      count_transition(run, id, 'b', 'p', true, known.attempt, '')
      known.event = encode_event_head('p', known.attempt, '')
    end
    return true
  end

  -- Record in one dependent that some of its blockers completed, and release it if it has no open blocker left.
  -- id: the dependent's id. raw: the dependent's encoded record; if it is false or nil, `get_job` reads the record.
  -- run: the run of the blockers. chains, results: parallel lists, the chain id and the result of each of these
  -- blockers.
  local function resolve_completed_one(id, raw, run, chains, results)
    if raw and release_uniform(id, raw, run) then return end
    if raw then jobs[id] = decode_job(id, raw) end
    local other = get_job(id)
    if not other then return end
    -- A dependent in the blocker's run needs no copy of the result: a claim of the dependent reads the result from the
    -- blocker's record. That record still exists then, because all jobs of a run are deleted together.
    local same_run = other.ext.run == run.id
    if same_run and other.ext.separate_waits then
      local completed = get_received(other).completed
      for i = 1, #chains do completed[#completed + 1] = chains[i] end
    else
      for i = 1, #chains do resolve(other, chains[i], same_run and '=' or '+' .. results[i]) end
    end
  end

  -- Record that jobs of one run completed, in all their dependents, and release dependents without an open blocker.
  -- awaiting: ids of the dependents. Each of them waits for all of the completed jobs.
  -- chains, results: parallel lists, the chain id and the result of each completed job.
  local function resolve_completed(run, awaiting, chains, results)
    local raws = #awaiting > 1 and fetch_raw(awaiting) or {}
    for _, id in ipairs(awaiting) do resolve_completed_one(id, jobs[id] == nil and raws[id], run, chains, results) end
  end

  -- Record the outcome of an ended job in its dependents, and release or skip them. Dependents in other shards get the
  -- outcome through the outbox.
  local function resolve_dependents(job)
    local local_ids, remote_ids = get_dependents(job)
    if #local_ids + #remote_ids == 0 then return end
    local chain, outcome, run = chain_of(job), outcome_of(job), job.ext.run
    local value = outcome == '+' and '+' .. job.tail or outcome
    for _, id in ipairs(remote_ids) do
      -- Other shards get '+' and the result after a success, '+' alone after a tolerated (soft) failure, '-' after any
      -- other outcome.
      local sent = outcome == '+' and value or outcome == '~' and '+' or '-'
      redis.call('HSET', SHARD .. 'outbox', id .. ' ' .. chain, sent)
      outbox[#outbox + 1] = id
      outbox[#outbox + 1] = chain
      outbox[#outbox + 1] = sent
    end
    local stored_run = outcome == '+' and run ~= '' and get_run(run)
    if stored_run then
      resolve_completed(stored_run, local_ids, { chain }, { job.tail })
    else
      fetch(local_ids)
      for _, id in ipairs(local_ids) do
        local other = jobs[id]
        if other then resolve(other, chain, value) end
      end
    end
  end

  -- Announce the end of the jobs in `ended_jobs`, and release or skip their dependents. The list grows while it is
  -- read, because a skipped dependent ends too.
  local function resolve_ended()
    write_awaiting()
    local i = 1
    while ended_jobs[i] do
      local job = ended_jobs[i]
      if job.chains then -- a group of completed jobs with the same dependents (_uniform.lua)
        job.resolved = true
        resolve_completed(job.run, job.awaiting, job.chains, job.results)
      else
        if job.flags > 0 then announce_end(job) end
        resolve_dependents(job)
      end
      i = i + 1
    end
    ended_jobs = {}
  end

  -- Release or skip the dependents of all jobs that ended in this script. A skipped dependent ends too, so the jobs
  -- that depend on it are also released or skipped.
  resolve_all = function()
    resolve_ended()
    while receivers[1] do
      local list = receivers
      receivers = {}
      for _, other in ipairs(list) do
        local received = received_outcomes[other.id]
        received_outcomes[other.id] = nil
        apply_received(other, received)
      end
      resolve_ended()
    end
  end
end
