-- Purpose: a worker's turn: reap what has run out, make due what is due, finish, then claim.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = shards; 3 = prefix of channels; 4 = {not_after, lane, seq, lease, worker, want, groups of
--       queues, labels, hints: counters that say how many may be wanted}; then for each finish: id, {kind, fence, delay, whether a job follows}, result or failure, and of
--       the job that follows: id, record, doc, what it waits for
-- Returns: {head, then for each claimed job: id, record, doc, then upstreams: chain, value, then the outbox: job, chain,
--          value, then who is not registered with a blocker elsewhere: '<job> <chain>'}; the head is
--          {now, verdicts, next_in (-1: never), until, ready, claimed, upstreams by job, outbox, unregistered} with
--          verdicts as letters (o | s), or {now, 'stale' | 'expired' | 'denied'} | error SHARDS n

-- include: _shard.lua
-- include: _agree.lua
local _, not_after, lane, seq, lease, worker, want, groups, worker_labels, hints = cmsgpack.unpack_limit(ARGV[4], 9, 1)

local REAPS, DUES = 100, 1000

-- include: _record.lua
-- include: _moves.lua
-- include: _time.lua
-- include: _create.lua
-- include: _claim.lua
-- include: _elsewhere.lua

-- What this lane did last: seq, until when it is remembered, the first fence, verdicts, ids.
local memory = SHARD .. 'memory:' .. lane
local verdicts, taken = {}, {}
local last = redis.call('GET', memory)
local again = false
if last then
  local its_seq, ends, fence, said, ids = cmsgpack.unpack(last)
  if ends > now then
    if seq < its_seq then return { cmsgpack.pack({ now, 'stale' }) } end
    if seq == its_seq then
      again = true
      verdicts[1] = said
      fetch(ids)
      for i, id in ipairs(ids) do
        local job = jobs[id]
        if job and job.state == 'r' and job.fence == fence + i - 1 then
          taken[#taken + 1] = id
          to_lease[#to_lease + 1] = now + lease
          to_lease[#to_lease + 1] = id
        end
      end
    end
  end
end

if now > not_after and not again then return { cmsgpack.pack({ now, 'expired' }) } end

-- function: take_hint = hub/hint_take.lua

-- Called by hints alone: others have come for all of it, and there is nothing to look for.
if #hints > 0 and not again then
  local allowed = 0
  for _, hint in ipairs(hints) do
    if allowed < want then allowed = allowed + take_hint({ hint }, { want - allowed, HINT_LIFE }) end
  end
  want = allowed
  if want == 0 and not ARGV[5] then return { cmsgpack.pack({ now, 'denied' }) } end
end

-- Back to where it came from, or scheduled, with all that an attempt leaves behind.
local function once_more(job, due)
  leave(job)
  job.due, job.fence, job.worker = due, 0, ''
  enter(job)
end

local function finish(job, kind, delay, payload, following)
  if kind == 'c' then
    if following then
      local flags = (has(job.flags, CHAIN_WATCHED) and CHAIN_WATCHED or 0) + (has(job.flags, AWAITED) and AWAITED or 0)
      job.flags = job.flags - flags
      create(following[1], following[2], following[3], following[4], flags, chain_of(job))
      job.ext = job.ext or { '', '', '', '', '', 0, 's', '', false, 0 }
      job.ext[NEXT] = following[1]
    end
    final(job, 'c', payload)
  elseif kind == 'x' or has(job.flags, CANCEL) then
    final(job, 'x', payload ~= '' and payload or job.tail)
  elseif kind == 'f' or (kind == 't' and job.attempt > job.retries) then
    final(job, 'f', payload)
  elseif kind == 't' then
    job.tail = payload
    once_more(job, now + delay)
  else
    job.attempt = job.attempt - 1
    if payload ~= '' then job.tail = payload end
    if kind == 'z' then job.snoozes = job.snoozes + 1 end
    once_more(job, kind == 'z' and now + delay or job.due)
  end
end

-- Most attempts end well, and most jobs are plain: no table is made of their records. Answers whether this was one.
local function finish_plain(id, raw, fence, result)
  local state, name, its_fence, _, started, attempt, progress, flags, kind, lane, ext, keep = struct.unpack(QUICK_READ, raw)
  if state ~= 'r' or its_fence ~= fence or flags ~= 0 or ext ~= 0 then return false end
  patched[id] = struct.pack(QUICK, 'c', name, fence, now, started, attempt, progress)
    .. string.sub(raw, QUICK_SIZE + 1, HEAD_SIZE + kind + lane + name) .. result
  local queue = queue_of(string.sub(raw, HEAD_SIZE + kind + 1, HEAD_SIZE + kind + lane))
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
    at = at + (string.byte(ARGV[at + 1], 18) == 1 and 7 or 3)
  end
  to_end.c = to_end.c or {}
  local raws = raw_records(ids)
  for i, id in ipairs(ids) do
    local from = starts[i]
    local kind, its_fence, delay, follows = struct.unpack('>c1I8I8B', ARGV[from + 1])
    local payload, raw = ARGV[from + 2], raws[id]
    verdicts[i] = 'o'
    if not (kind == 'c' and follows == 0 and raw and not patched[id] and jobs[id] == nil
      and finish_plain(id, raw, its_fence, payload)) then
      if jobs[id] == nil and raw and not patched[id] then jobs[id] = read(id, raw) end
      local job = job_of(id)
      if job and job.state == 'r' and job.fence == its_fence then
        finish(job, kind, delay, payload,
          follows == 1 and { ARGV[from + 3], ARGV[from + 4], ARGV[from + 5], ARGV[from + 6] })
      else
        verdicts[i] = 's'
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
    fence = math.max(tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) + 1, now)
    redis.call('HSET', KEYS[1], 'fence', digits(fence + #taken - 1))
    for i, id in ipairs(taken) do
      local raw = plain[id]
      if raw then
        local _, _, _, _, _, attempt, _, _, kind, lane = struct.unpack(QUICK_READ, raw)
        local ends = HEAD_SIZE + kind + lane
        patched[id] = struct.pack(QUICK, 'r', #worker, fence + i - 1, 0, now, attempt + 1, 0)
          .. string.sub(raw, QUICK_SIZE + 1, ends) .. worker .. (ends < #raw and string.sub(raw, ends + 1) or '')
      else
        local job = jobs[id]
        move(job, 'r')
        job.attempt, job.fence, job.worker = job.attempt + 1, fence + i - 1, worker
        job.started, job.progress = now, 0
        if job.fresh then ready[job.type] = ready[job.type] - 1 end
        if ext_of(job, SCOPE) == 's' then let_go(job) end
      end
      to_lease[2 * i - 1], to_lease[2 * i] = digits(now + lease), id
    end
  end
  store_new()
  redis.call('SET', memory, cmsgpack.pack(seq, now + 2 * lease, fence, table.concat(verdicts), taken), 'PX',
    digits(math.ceil(2 * lease / 1000) + spare))
end
flush(ARGV[3])

local upstreams = {}
local docs = fields_of('doc', taken)
local answer = { '' }
for i, id in ipairs(taken) do
  local n = 3 * i
  answer[n - 1] = id
  answer[n] = patched[id] or packed(jobs[id])
  answer[n + 1] = docs[i] or ''
end
for i, id in ipairs(taken) do
  if jobs[id] and ext_of(jobs[id], AFTER) == true then
    local found = redis.call('HGETALL', SHARD .. 'upstream:' .. id)
    upstreams[#upstreams + 1] = i - 1
    upstreams[#upstreams + 1] = #found / 2
    for _, part in ipairs(found) do answer[#answer + 1] = part end
  end
end
for _, part in ipairs(outbox) do answer[#answer + 1] = part end
local unregistered = ARGV[2] == '1' and {} or unregistered_since(now - GRACE)
for _, part in ipairs(unregistered) do answer[#answer + 1] = part end
local soonest = rushed and 0 or next_in()
if meters_in and (not soonest or meters_in < soonest) then soonest = meters_in end
answer[1] = cmsgpack.pack({ now, table.concat(verdicts), soonest or -1, now + lease, made_ready(), #taken, upstreams,
  #outbox / 3, #unregistered })
return answer
