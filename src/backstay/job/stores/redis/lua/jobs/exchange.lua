-- Purpose: a worker's exchange: reap expired leases, make due jobs pending, apply finishes, then claim jobs.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the caller's number of shards
--       3 = prefix of the Pub/Sub channels' names
--       4 = msgpack array of 13 fields: see "Options"
--       from 5 on, at least three values for each finish: see "Finishes"
-- Returns: {head, the lists under "Reply"…}
--          or {msgpack {now, code}} if the exchange is rejected and nothing changed: 'stale' (the channel has already
--            sent a higher seq), 'expired' (it arrived after not_after) or 'denied' (it only claims, and other workers
--            took all announced jobs); with permits also 'late' (they are not valid any more, and none was used) or
--            'spent' (an earlier request with these permits was executed)
--          or error 'SHARDS <stored number>' if the caller's number of shards differs
--
-- Options, times in µs: not_after (reject the exchange after this time); channel (name of the worker channel); seq
-- (number of the exchange on that channel); lease (duration of the new leases); worker (id); want (largest number of
-- jobs to claim); groups (lists of queue names, searched in order); labels (of the worker); hints (keys of counters:
-- each announcement of new jobs has one, which starts at the number of jobs; the claim gets no more jobs than it takes
-- from the counters); waiting_seq (seq of this channel's earlier claim that may still wait in the shard
-- for a job, 0: none); waiting (nil: this claim may not wait; else {inbox: the Pub/Sub channel on which the worker
-- receives jobs, longest wait, job types, queues}); permits (nil, or {time until which they are valid, key of a meter,
-- number, …}: see "Permits"); pauses (by key of a meter: until when the caller does not ask for its permits).
--
-- Permits: a pending job may have a rate whose home is another shard (_meter.lua). The first such job that could be
-- claimed ends the claim, unless the caller pauses, and the reply lists the permits that would let such jobs start. The
-- caller takes permits there, and sends the exchange a second time: with the same seq, with the permits (also if it got
-- none), without finishes. This second request continues the claim, in the same order of ranks, and its jobs are added
-- to the stored reply of the seq. It is executed once. The permits are valid until a time of this shard's clock, counted from the first request:
-- the permits were taken later, so they are not used after their batch has ended in the other shard.
--
-- Finishes: the job's id; packed {letter of the kind, fence, delay in µs, extras}; the result or the encoded failure.
-- The kinds are 'c' (complete) and those of `finish` below. If `extras` is 1, the packed value continues with {number
-- of jobs to add, 1 if a job continues the chain (else 0), number of outputs}. Then these follow the result: each job
-- to add and the job that continues the chain (id, record, doc, blockers), and each output (key, value).
--
-- The head of the reply is a msgpack array:
--   1. now, in µs
--   2. a string with a verdict for each finish: 'o' (ok) or 's' (stale: the lease is not current). Or 'handed':
--      `enqueue` has already answered the claim `waiting_seq` (_direct_handoff.lua). Then this reply contains the job
--      that it handed over, and the finishes of this exchange are not applied
--   3. µs until a job is due, a lease expires or a rate lets a pending job start; 0: claim again at once; -1: none of
--      these will happen
--   4. time at which the leases of the claimed jobs end
--   5. jobs that became pending, by type: type, count, type, count, …
--   6. number of claimed jobs
--   7. two numbers for each claimed job whose blockers are stored in keys of their own (SEPARATE_WAITS in
--      _record.lua): its position, counted from 0, and how many upstreams the reply contains for it
--   8. number of outbox entries; 9. number of unregistered entries; 10. number of results
--   11. permits that would let further jobs start, for each lane: {number of jobs, meter, …}, where a meter is {key, its
--      shard, µs between two starts, starts allowed at once}; 12. permits used: key of the meter, number, …
--
-- Reply, after the head:
--   * claimed jobs: id, record, doc (arguments, metadata, blockers), …
--   * upstreams, the outcomes of blockers that are not in a job's record: id of the blocker's chain, value ('w' if the
--     chain has not ended, else as in `resolve` in _finish.lua), …
--   * outbox entries written by this call, which tell jobs of other shards that a chain has ended: id of the waiting
--     job, id of the chain, '+<result>' (a tolerated failure: '+') or '-' (any other outcome), …
--   * unregistered entries, '<job> <chain>': the job waits for a chain of another shard, and that shard may not know
--     that the job waits; …
--   * results of the claimed jobs' completed blockers: chain's id, result, … A blocker of several claimed jobs appears
--     once.

-- include: _shard.lua
-- include: _check_shards.lua
local _, not_after, channel, seq, lease, worker, want, groups, worker_labels, hints, waiting_seq, waiting, batch,
  pauses = cmsgpack.unpack_limit(ARGV[4], 13, 1)

-- include: _stored_reply.lua

-- A full server stores no new jobs, but workers go on with those that it has: only finished jobs can be deleted.
if not ARGV[5] or is_replay then
-- include: _when_full.lua
end

-- function: take_hint = hub/hint_take.lua

-- The worker claims because it received announcements of new jobs. Each announcement has a counter of its jobs. Take up to
-- `want` from the counters, and claim no more jobs than that. If other workers took everything, claim nothing.
if #hints > 0 and not is_replay then
  local granted = 0
  for _, hint in ipairs(hints) do
    if granted < want then granted = granted + take_hint({ hint }, { want - granted, HINT_TTL }) end
  end
  want = granted
  if want == 0 and not ARGV[5] then return { cmsgpack.pack({ now, 'denied' }) } end
end

-- include: _fast_claim.lua

-- MAX_REAPED: the largest number of expired leases that one exchange reaps. MAX_DUE: the largest number of scheduled
-- jobs that it makes pending. Both are limited because a script blocks all other clients. SMALL: up to this size in
-- bytes (on average), a full server still stores the results and failures of an exchange.
local MAX_REAPED, MAX_DUE, SMALL = 100, 1000, 4096

-- include: _record.lua
-- include: _transitions.lua
-- include: _reap.lua
-- include: _create.lua
-- include: _claim.lua
-- include: _cross_shard.lua

-- requested: list of the chains whose results the reply will contain. is_requested: set of these chains. separate:
-- positions of the claimed jobs whose blockers are stored in keys of their own (SEPARATE_WAITS in _record.lua).
local requested, is_requested, separate = {}, {}, {}

-- Add the result of a chain to the reply, unless it is already there.
local function request_result(chain)
  if not is_requested[chain] then
    is_requested[chain] = true
    requested[#requested + 1] = chain
  end
end

-- Add the results of a claimed job's completed blockers to the reply. `position`: that of the job in the reply, from 1
-- on. `ext`: the part of its record that names its blockers, decoded (_record.lua).
local function request_results(position, ext)
  if ext.separate_waits then separate[#separate + 1] = position end
  for i, name in ipairs(ext.after) do
    if string.byte(ext.outcomes, i) == 43 then request_result(name) end
  end
end

-- verdicts: a letter for each finish. taken: ids of the claimed jobs.
local verdicts, taken = {}, {}
if is_replay then
  -- A reply to this exchange, or to the waiting claim `waiting_seq`, is already stored: send that reply again. Leave
  -- out jobs that the worker no longer holds, and renew the leases of the others.
  verdicts[1] = is_handed_off and 'handed' or previous[4]
  fetch(previous[5])
  for i, id in ipairs(previous[5]) do
    local job, first = jobs[id], previous[7] or #previous[5]
    local expected = i <= first and previous[3] + i - 1 or previous[8] + i - first - 1
    if job and job.state == 'r' and job.fence == expected then
      taken[#taken + 1] = id
      to_lease[#to_lease + 1] = now + lease
      to_lease[#to_lease + 1] = id
      request_results(#taken, job.ext)
    end
  end
end

-- End an attempt without making the job final: it becomes pending, or scheduled if `due` is in the future.
-- `why`: the reason that is stored in the run's event.
local function requeue(job, due, why)
  local previous_worker = job.worker
  end_lease(job)
  job.due, job.fence, job.worker = due, 0, ''
  make_pending(job, why, previous_worker)
end

-- Create the job that continues the chain of `job`, which has completed. Clients and other jobs that wait for the chain
-- now wait for the new job. ARGV holds the new job's id, record, doc and blockers, from position `at` on.
local function create_follower(job, at)
  local flags = (has(job.flags, CHAIN_WATCHED) and CHAIN_WATCHED or 0) + (has(job.flags, AWAITED) and AWAITED or 0)
  local inherited = { run = job.ext.run, flags = flags, chain = chain_of(job), awaiting = job.ext.awaiting }
  local ext = edit_ext(job)
  job.flags, ext.awaiting = job.flags - flags, NO_EXT.after
  create(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], inherited)
  ext.next = ARGV[at]
  local run = ext.run ~= '' and get_run(ext.run)
  -- A chain counts as one job of the run, in the state of its last job: the completed job is no longer counted.
  if run then run.counts.c = run.counts.c - 1 end
end

-- Complete a job whose finish has extras. From ARGV[at] on come the `adds` jobs to add, then the job that continues the
-- chain if `follows` is 1, then the `outputs` outputs.
local function complete(job, result, at, adds, follows, outputs)
  end_job(job, 'c', result)
  for _ = 1, adds do
    create(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], { run = job.ext.run })
    at = at + 4
  end
  if follows > 0 then
    create_follower(job, at)
    at = at + 4
  end
  if outputs > 0 then
    local values = {}
    for i = at, at + 2 * outputs - 1 do values[#values + 1] = ARGV[i] end
    call_batched('HSET', 'outputs:' .. job.id, values)
    if not has(job.flags, OUTPUTS) then job.flags = job.flags + OUTPUTS end
  end
end

-- Finish an attempt without completing the job. `kind`: 'f' (fail), 't' (retry), 'z' (snooze), 'l' (release), 'x'
-- (cancel) or 'k' (skip). If the job's cancellation is requested, the job is cancelled, whatever the kind.
-- `delay`: µs until the next attempt. `payload`: an encoded failure or ''.
local function finish(job, kind, delay, payload)
  local tail = payload ~= '' and payload or job.tail
  if has(job.flags, CANCEL_REQUESTED) then
    end_job(job, 'x', tail, read_message(tail))
    return
  end
  local why = read_message(payload)
  if kind == 'x' or kind == 'k' then
    end_job(job, kind, tail, why)
  elseif kind == 'f' or (kind == 't' and job.attempt > job.retries) then
    end_job(job, 'f', payload, why)
  elseif kind == 't' then
    job.tail = payload
    requeue(job, now + delay, why)
  else
    job.attempt, job.tail = job.attempt - 1, tail
    if kind == 'z' then job.snoozes = job.snoozes + 1 end
    requeue(job, kind == 'z' and now + delay or job.due, why)
  end
end

local packed_now = struct.pack('>I8', now)

-- include: _uniform.lua

-- Fast path: complete a job without decoding its record. It applies to a running job with the right fence whose end has
-- no further effects, and to the jobs of _uniform.lua. Returns whether it applied; if not, nothing changed. `raw`: the
-- job's record as stored. `fence`: the fence of the finish, as eight bytes.
local function complete_plain(id, raw, fence, result)
  if string.byte(raw) ~= 114 or string.sub(raw, 3, 10) ~= fence then return false end
  local flags, kind, lane, ext, keep = struct.unpack('>BI2I2I2I8', raw, ATTEMPT_SIZE + 1)
  if ext > 0 then return complete_uniform(id, raw, fence, result) end
  if flags ~= 0 then return false end
  local at = HEAD_SIZE + kind + lane
  patch(id, 'c' .. string.sub(raw, 2, 10) .. packed_now .. string.sub(raw, 19, at + string.byte(raw, 2)) .. result)
  local queue = queue_of(string.sub(raw, HEAD_SIZE + kind + 1, at))
  change_count('r' .. queue, -1)
  change_count('c' .. queue, 1)
  from_lease[#from_lease + 1] = id
  local list = to_end.c
  list[#list + 1] = format_int(now + keep)
  list[#list + 1] = id
  return true
end

local parked_too_many, rate_wait, fence = false, nil, 0
local permits_wanted, permits_used = {}, {}
if not is_replay then
  local ids, at, bytes = {}, 5, 0
  local offsets = {}
  while ARGV[at] do
    ids[#ids + 1] = ARGV[at]
    offsets[#offsets + 1] = at
    bytes = bytes + #ARGV[at + 2]
    if string.byte(ARGV[at + 1], 18) == 0 then
      at = at + 3
    else
      local adds, follows, outputs = struct.unpack('>I4BI4', ARGV[at + 1], 19)
      at = at + 3 + 4 * (adds + follows) + 2 * outputs
    end
  end
  if ids[1] and at == 5 + 3 * #ids and bytes <= SMALL * #ids then
-- include: _when_full.lua
  end
  if not batch then
    reap(MAX_REAPED)
    make_due(MAX_DUE)
  end
  to_end.c = to_end.c or {}
  local raws = fetch_raw(ids)
  for i, id in ipairs(ids) do
    local from = offsets[i]
    local head, payload, raw = ARGV[from + 1], ARGV[from + 2], raws[id]
    verdicts[i] = 'o'
    if not (string.byte(head) == 99 and (offsets[i + 1] or at) == from + 3
      and raw and not patched[id] and jobs[id] == nil
      and complete_plain(id, raw, string.sub(head, 2, 9), payload)) then
      local kind, finish_fence, delay, more = struct.unpack('>c1I8I8B', head)
      if jobs[id] == nil and raw and not patched[id] then jobs[id] = decode_job(id, raw) end
      local job = get_job(id)
      -- Release or skip the dependents of the previous finishes before this finish is applied. This keeps the order of
      -- the finishes: if several blockers of a dependent fail or are cancelled, the first of them decides why the
      -- dependent is skipped.
      if ended_jobs[1] or receivers[1] then resolve_all() end
      if not (job and job.state == 'r' and job.fence == finish_fence) then
        verdicts[i] = 's'
      elseif kind ~= 'c' then
        finish(job, kind, delay, payload)
      elseif more == 0 then
        end_job(job, 'c', payload)
      else
        complete(job, payload, from + 3, struct.unpack('>I4BI4', head, 19))
      end
    end
  end
  resolve_all()
  write_lanes()
  local plain = {}
  if want > 0 then
    local labels = {}
    for _, label in ipairs(worker_labels) do labels[label] = true end
    parked_too_many = claim(groups, labels, want, taken, plain)
    rate_wait = write_meters()
    permits_wanted, permits_used = list_permits(want - #taken)
  end
  if #taken > 0 then
    local lease_end = format_int(now + lease)
    fence = math.max(tonumber(last_fence or 0) + 1, now)
    redis.call('HSET', KEYS[1], 'fence', format_int(fence + #taken - 1))
    for i, id in ipairs(taken) do
      local raw = plain[id]
      if made_pending[id] then ready[made_pending[id]] = ready[made_pending[id]] - 1 end
      if raw then
        if string.byte(raw, 44) > 0 or string.byte(raw, 45) > 0 then
          start_uniform(id, raw, i, fence + i - 1)
        else
          local _, _, _, _, _, attempt, _, _, kind, lane = struct.unpack(ATTEMPT_READ, raw)
          local stop = HEAD_SIZE + kind + lane
          patch(id, struct.pack(ATTEMPT, 'r', #worker, fence + i - 1, 0, now, attempt + 1, 0)
            .. string.sub(raw, ATTEMPT_SIZE + 1, stop) .. worker .. (stop < #raw and string.sub(raw, stop + 1) or ''))
        end
      else
        local job = jobs[id]
        job.attempt, job.fence, job.worker = job.attempt + 1, fence + i - 1, worker
        job.started, job.progress = now, 0
        change_state(job, 'r')
        if job.ext.scope == 's' then free_unique(job) end
        request_results(i, job.ext)
      end
      to_lease[2 * i - 1], to_lease[2 * i] = lease_end, id
    end
  end
  write_new()
end
flush(ARGV[3])
if not is_replay then store_reply(fence, table.concat(verdicts), taken) end

-- Return the blockers that a job was enqueued with: the third element of its doc, a msgpack array. The first two are
-- byte strings (args, meta), which are skipped without decoding them.
local function read_after(doc)
  if not doc or string.byte(doc) ~= 147 then return {} end
  local at = 2
  for _ = 1, 2 do
    local kind = string.byte(doc, at) - 195
    local size = struct.unpack(kind == 1 and '>B' or kind == 2 and '>I2' or '>I4', doc, at + 1)
    at = at + 1 + 2 ^ (kind - 1) + size
  end
  return cmsgpack.unpack(string.sub(doc, at))
end

-- For each claimed job whose blockers are stored in keys of their own (SEPARATE_WAITS in _record.lua): its position,
-- counted from 0, then how many outcomes of blockers the reply contains for it.
local upstreams = {}
local docs = get_fields('doc', taken)
local reply = { '' }
for i, id in ipairs(taken) do
  local n = 3 * i
  reply[n - 1] = id
  reply[n] = patched[id] or encode_job(jobs[id])
  reply[n + 1] = docs[i] or ''
end
for _, i in ipairs(separate) do
  local outcomes, at = {}, #reply
  local found = redis.call('HGETALL', SHARD .. 'upstream:' .. taken[i])
  for k = 1, #found, 2 do outcomes[found[k]] = found[k + 1] end
  for _, name in ipairs(redis.call('SMEMBERS', SHARD .. 'waits:' .. taken[i])) do outcomes[name] = 'w' end
  outcomes[''], outcomes['!'] = nil, nil
  for name, value in pairs(outcomes) do
    reply[#reply + 1] = name
    reply[#reply + 1] = value
  end
  upstreams[#upstreams + 1] = i - 1
  upstreams[#upstreams + 1] = (#reply - at) / 2
  -- `waits:<job>` contains the blockers that have not ended, `upstream:<job>` the outcomes of those that have ended. A
  -- blocker that is in neither completed in the job's own run. Then only the blocker's own record contains its result,
  -- so the result is read from there.
  for _, name in ipairs(read_after(docs[i])) do
    if not outcomes[name] or outcomes[name] == '=' then request_result(name) end
  end
end
for _, part in ipairs(outbox) do reply[#reply + 1] = part end
local unregistered = ARGV[2] == '1' and {} or list_unregistered(now - REGISTRATION_GRACE)
for _, part in ipairs(unregistered) do reply[#reply + 1] = part end
if #requested > 0 then
  local last_ids = get_fields('chain', requested)
  for i, chain in ipairs(requested) do last_ids[i] = last_ids[i] or chain end
  for i, raw in ipairs(get_fields('job', last_ids)) do
    -- The hash `chain` may name a job that is not stored: a half-applied script (_transitions.lua) wrote the name, but
    -- not the job. Then read the chain's first job instead.
    raw = raw or redis.call('HGET', SHARD .. 'job', requested[i])
    reply[#reply + 1] = requested[i]
    reply[#reply + 1] = raw and read_tail(raw)
  end
end
local soonest = parked_too_many and 0 or find_next_due()
if rate_wait and (not soonest or rate_wait < soonest) then soonest = rate_wait end
reply[1] = cmsgpack.pack({ now, table.concat(verdicts), soonest or -1, now + lease, list_ready(), #taken, upstreams,
  #outbox / 3, #unregistered, #requested, permits_wanted, permits_used })
return reply
