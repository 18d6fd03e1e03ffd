-- Purpose: exchange jobs with a worker: reap expired leases, make due, finish, then claim.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = shards; 3 = prefix of channels; 4 = {not_after, channel, seq, lease, worker, want, groups of
--       queues, labels, hints: counters that bound `want`, waiting_seq: the seq whose claim waits in the shard, waiting:
--       inbox, duration, types and queues of this claim if it may wait}; then for each finish: id, {kind, fence, delay,
--       whether more follows: number of jobs to add, whether a follower comes, number of outputs}, result or failure; then
--       for each job to add and for the follower: id, record, doc, blockers; then outputs: key, value
-- Returns: {head; for each claimed job: id, record, doc; upstreams: chain, value; outbox: job, chain, value; jobs that are
--          not registered with a blocker of another shard: '<job> <chain>'; results of the claimed jobs' blockers, each
--          once: chain, result}. Upstreams are the outcomes that do not fit into a record (w: open); every other blocker
--          that a doc names has a result. The head is {now, verdicts, next_in (-1: never), until, ready, number of claimed
--          jobs, number of upstreams by job, sizes of outbox, unregistered and results}; verdicts are letters (o | s) or
--          'handed'. | {{now, 'stale' | 'expired' | 'denied'}} | error SHARDS n

-- include: _shard.lua
-- include: _agree.lua
local _, not_after, lane, seq, lease, worker, want, groups, worker_labels, hints, unheard, stand =
  cmsgpack.unpack_limit(ARGV[4], 11, 1)

-- The channel's last exchange: seq, until when it is kept, first fence, verdicts, ids; and the claim that waits in the
-- shard, or true once a job was handed to it.
local memory = SHARD .. 'memory:' .. lane
local last = redis.call('GET', memory)
local before = last and { cmsgpack.unpack(last) }
local again, handed = false, false
if before and before[2] > now then
  if seq < before[1] then return { cmsgpack.pack({ now, 'stale' }) } end
  handed = before[6] == true and unheard == before[1]
  again = handed or seq == before[1]
end
if now > not_after and not again then return { cmsgpack.pack({ now, 'expired' }) } end

local function remember(fence, verdicts, ids)
  local standing = false
  if stand and #ids == 0 then
    local inbox, life, types, queues = unpack(stand)
    standing = { now + life, worker, lease, inbox, types }
    for _, queue in ipairs(queues) do
      redis.call('ZADD', SHARD .. 'idle:' .. queue, string.format('%.0f', now + life), lane)
      redis.call('PEXPIRE', SHARD .. 'idle:' .. queue, string.format('%.0f', math.ceil(life / 1000) + spare))
    end
  end
  redis.call('SET', memory, cmsgpack.pack(seq, now + 2 * lease, fence, verdicts, ids, standing), 'PX',
    string.format('%.0f', math.ceil(2 * lease / 1000) + spare))
end

-- function: take_hint = hub/hint_take.lua

-- A claim for hints alone takes from their counters. If other workers have used them up, there is nothing to claim.
if #hints > 0 and not again then
  local allowed = 0
  for _, hint in ipairs(hints) do
    if allowed < want then allowed = allowed + take_hint({ hint }, { want - allowed, HINT_LIFE }) end
  end
  want = allowed
  if want == 0 and not ARGV[5] then return { cmsgpack.pack({ now, 'denied' }) } end
end

-- include: _fast_claim.lua

local REAPS, DUES = 100, 1000

-- include: _record.lua
-- include: _moves.lua
-- include: _time.lua
-- include: _create.lua
-- include: _claim.lua
-- include: _cross_shard.lua

-- wanted: blockers of claimed jobs whose results to return, each once. keyed: positions of the claimed jobs whose outcomes
-- are stored in keys of their own.
local wanted, asked, keyed = {}, {}, {}

local function want_result(chain)
  if not asked[chain] then
    asked[chain] = true
    wanted[#wanted + 1] = chain
  end
end

local function want_results(place, ext)
  if ext.keyed then keyed[#keyed + 1] = place end
  for i, name in ipairs(ext.after) do
    if string.byte(ext.letters, i) == 43 then want_result(name) end
  end
end

local verdicts, taken = {}, {}
if again then
  verdicts[1] = handed and 'handed' or before[4]
  fetch(before[5])
  for i, id in ipairs(before[5]) do
    local job = jobs[id]
    if job and job.state == 'r' and job.fence == before[3] + i - 1 then
      taken[#taken + 1] = id
      to_lease[#to_lease + 1] = now + lease
      to_lease[#to_lease + 1] = id
      want_results(#taken, job.ext)
    end
  end
end

-- End an attempt and make the job pending or scheduled again.
local function once_more(job, due, why)
  local who = job.worker
  leave(job)
  job.due, job.fence, job.worker = due, 0, ''
  enter(job, why, who)
end

-- Create the follower of a job: it inherits the chain's watchers and dependents.
local function follow(job, at)
  local flags = (has(job.flags, CHAIN_WATCHED) and CHAIN_WATCHED or 0) + (has(job.flags, AWAITED) and AWAITED or 0)
  local heir = { run = job.ext.run, flags = flags, chain = chain_of(job), awaiting = job.ext.awaiting }
  local ext = own_ext(job)
  job.flags, ext.awaiting = job.flags - flags, NO_EXT.after
  create(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], heir)
  ext.next = ARGV[at]
  local run = ext.run ~= '' and run_of(ext.run)
  if run then run.counts.c = run.counts.c - 1 end -- both count as one job of the run, and the follower is counted
end

-- Complete a job. ARGV from `at` on: jobs to add, the follower, outputs.
local function complete(job, result, at, adds, follows, outputs)
  final(job, 'c', result)
  for _ = 1, adds do
    create(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], { run = job.ext.run })
    at = at + 4
  end
  if follows > 0 then
    follow(job, at)
    at = at + 4
  end
  if outputs > 0 then
    local values = {}
    for i = at, at + 2 * outputs - 1 do values[#values + 1] = ARGV[i] end
    each('HSET', 'outputs:' .. job.id, values)
    if not has(job.flags, OUTPUTS) then job.flags = job.flags + OUTPUTS end
  end
end

local function finish(job, kind, delay, payload)
  local tail = payload ~= '' and payload or job.tail
  if has(job.flags, CANCEL) then
    final(job, 'x', tail, message_of(tail))
    return
  end
  local why = message_of(payload)
  if kind == 'x' or kind == 'k' then
    final(job, kind, tail, why)
  elseif kind == 'f' or (kind == 't' and job.attempt > job.retries) then
    final(job, 'f', payload, why)
  elseif kind == 't' then
    job.tail = payload
    once_more(job, now + delay, why)
  else
    job.attempt, job.tail = job.attempt - 1, tail
    if kind == 'z' then job.snoozes = job.snoozes + 1 end
    once_more(job, kind == 'z' and now + delay or job.due, why)
  end
end

local moment = struct.pack('>I8', now)

-- include: _uniform.lua

-- The fast path of a completion, without decoding the record: most jobs are plain and complete. Returns whether it applied.
-- `fence`: eight bytes, as in a record.
local function finish_plain(id, raw, fence, result)
  if string.byte(raw) ~= 114 or string.sub(raw, 3, 10) ~= fence then return false end
  local flags, kind, lane, ext, keep = struct.unpack('>BI2I2I2I8', raw, QUICK_SIZE + 1)
  if ext > 0 then return finish_alike(id, raw, fence, result) end
  if flags ~= 0 then return false end
  local at = HEAD_SIZE + kind + lane
  patch(id, 'c' .. string.sub(raw, 2, 10) .. moment .. string.sub(raw, 19, at + string.byte(raw, 2)) .. result)
  local queue = queue_of(string.sub(raw, HEAD_SIZE + kind + 1, at))
  add('r' .. queue, -1)
  add('c' .. queue, 1)
  from_lease[#from_lease + 1] = id
  local list = to_end.c
  list[#list + 1] = digits(now + keep)
  list[#list + 1] = id
  return true
end

local rushed, meters_in, fence = false, nil, 0
if not again then
  reap(REAPS)
  make_due(DUES)
  local ids, at = {}, 5
  local starts = {}
  while ARGV[at] do
    ids[#ids + 1] = ARGV[at]
    starts[#starts + 1] = at
    if string.byte(ARGV[at + 1], 18) == 0 then
      at = at + 3
    else
      local adds, follows, outputs = struct.unpack('>I4BI4', ARGV[at + 1], 19)
      at = at + 3 + 4 * (adds + follows) + 2 * outputs
    end
  end
  to_end.c = to_end.c or {}
  local raws = raw_records(ids)
  for i, id in ipairs(ids) do
    local from = starts[i]
    local said, payload, raw = ARGV[from + 1], ARGV[from + 2], raws[id]
    verdicts[i] = 'o'
    if not (string.byte(said) == 99 and (starts[i + 1] or at) == from + 3 and raw and not patched[id] and jobs[id] == nil
      and finish_plain(id, raw, string.sub(said, 2, 9), payload)) then
      local kind, its_fence, delay, more = struct.unpack('>c1I8I8B', said)
      if jobs[id] == nil and raw and not patched[id] then jobs[id] = read(id, raw) end
      local job = job_of(id)
      -- One finish after another: the order decides which blocker a dependent is skipped for.
      if ended[1] or arriving[1] then settle() end
      if not (job and job.state == 'r' and job.fence == its_fence) then
        verdicts[i] = 's'
      elseif kind ~= 'c' then
        finish(job, kind, delay, payload)
      elseif more == 0 then
        final(job, 'c', payload)
      else
        complete(job, payload, from + 3, struct.unpack('>I4BI4', said, 19))
      end
    end
  end
  settle()
  fill_lanes()
  local plain = {}
  if want > 0 then
    local labels = {}
    for _, label in ipairs(worker_labels) do labels[label] = true end
    rushed = claim(groups, labels, want, taken, plain)
    meters_in = charge_meters()
  end
  if #taken > 0 then
    local till = digits(now + lease)
    fence = math.max(tonumber(last_fence or 0) + 1, now)
    redis.call('HSET', KEYS[1], 'fence', digits(fence + #taken - 1))
    for i, id in ipairs(taken) do
      local raw = plain[id]
      if fresh[id] then ready[fresh[id]] = ready[fresh[id]] - 1 end
      if raw then
        if string.byte(raw, 44) > 0 or string.byte(raw, 45) > 0 then
          start_alike(id, raw, i, fence + i - 1)
        else
          local _, _, _, _, _, attempt, _, _, kind, lane = struct.unpack(QUICK_READ, raw)
          local ends = HEAD_SIZE + kind + lane
          patch(id, struct.pack(QUICK, 'r', #worker, fence + i - 1, 0, now, attempt + 1, 0)
            .. string.sub(raw, QUICK_SIZE + 1, ends) .. worker .. (ends < #raw and string.sub(raw, ends + 1) or ''))
        end
      else
        local job = jobs[id]
        job.attempt, job.fence, job.worker = job.attempt + 1, fence + i - 1, worker
        job.started, job.progress = now, 0
        move(job, 'r')
        if job.ext.scope == 's' then let_go(job) end
        want_results(i, job.ext)
      end
      to_lease[2 * i - 1], to_lease[2 * i] = till, id
    end
  end
  store_new()
end
flush(ARGV[3])
if not again then remember(fence, table.concat(verdicts), taken) end

-- Return the blockers that a job was enqueued with: the third element of a doc, after two byte strings.
local function after_of(doc)
  if not doc or string.byte(doc) ~= 147 then return {} end
  local at = 2
  for _ = 1, 2 do
    local kind = string.byte(doc, at) - 195
    local size = struct.unpack(kind == 1 and '>B' or kind == 2 and '>I2' or '>I4', doc, at + 1)
    at = at + 1 + 2 ^ (kind - 1) + size
  end
  return cmsgpack.unpack(string.sub(doc, at))
end

local upstreams = {}
local docs = fields_of('doc', taken)
local answer = { '' }
for i, id in ipairs(taken) do
  local n = 3 * i
  answer[n - 1] = id
  answer[n] = patched[id] or packed(jobs[id])
  answer[n + 1] = docs[i] or ''
end
for _, i in ipairs(keyed) do
  local said, at = {}, #answer
  local found = redis.call('HGETALL', SHARD .. 'upstream:' .. taken[i])
  for k = 1, #found, 2 do said[found[k]] = found[k + 1] end
  for _, name in ipairs(redis.call('SMEMBERS', SHARD .. 'waits:' .. taken[i])) do said[name] = 'w' end
  said[''], said['!'] = nil, nil
  for name, value in pairs(said) do
    answer[#answer + 1] = name
    answer[#answer + 1] = value
  end
  upstreams[#upstreams + 1] = i - 1
  upstreams[#upstreams + 1] = (#answer - at) / 2
  -- A blocker that is in neither key completed in the job's own run.
  for _, name in ipairs(after_of(docs[i])) do
    if not said[name] or said[name] == '=' then want_result(name) end
  end
end
for _, part in ipairs(outbox) do answer[#answer + 1] = part end
local unregistered = ARGV[2] == '1' and {} or unregistered_since(now - GRACE)
for _, part in ipairs(unregistered) do answer[#answer + 1] = part end
if #wanted > 0 then
  local lasts = fields_of('chain', wanted)
  for i, chain in ipairs(wanted) do lasts[i] = lasts[i] or chain end
  for i, raw in ipairs(fields_of('job', lasts)) do
    -- A half-applied script may have named a last job that was never created.
    raw = raw or redis.call('HGET', SHARD .. 'job', wanted[i])
    answer[#answer + 1] = wanted[i]
    answer[#answer + 1] = raw and tail_of(raw)
  end
end
local soonest = rushed and 0 or next_in()
if meters_in and (not soonest or meters_in < soonest) then soonest = meters_in end
answer[1] = cmsgpack.pack({ now, table.concat(verdicts), soonest or -1, now + lease, made_ready(), #taken, upstreams,
  #outbox / 3, #unregistered, #wanted })
return answer
