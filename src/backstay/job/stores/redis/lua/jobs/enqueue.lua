-- Purpose: enqueue jobs, all or none. A job that is already stored is left unchanged.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the caller's number of shards
--       3 = prefix of the Pub/Sub channels' names
--       4 = one character, the form of the jobs: '0' any jobs; '1' only plain jobs (_record.lua); '2' only plain jobs,
--         all with equal records. After it, the announcements to publish, if any, as a msgpack array of three values
--         each: key of the announcement's counter, number of jobs, message
--       from 5 on, in forms '0' and '1', four values for each job: id, record, doc (arguments, metadata, blockers;
--         msgpack), blockers (encoded as in _create.lua)
--       from 5 on, in form '2': the common record, then two values for each job: id, doc
-- Returns: {states, id, id, …}. `states` is a string with one letter for each job, the letter of its state. A letter in
--            upper case: the job is not stored, because another job holds its unique key. The letter is then the state
--            of that other job. The ids are those of these other jobs, in order
--          or {'', id of a blocker that is unknown}: nothing is stored
--          or error 'SHARDS <stored number>' if the caller's number of shards differs

-- include: _shard.lua
-- include: _check_shards.lua

-- function: publish_hint = hub/hint_publish.lua

-- include: _direct_handoff.lua

-- Publish the announcements of new jobs to workers (see ARGV[4]).
local function announce()
  if #ARGV[4] == 1 then return end
  local hints = cmsgpack.unpack(string.sub(ARGV[4], 2))
  for i = 1, #hints, 3 do
    publish_hint({ hints[i] }, { hints[i + 1], HINT_TTL, ARGV[3] .. ':sched', hints[i + 2] })
  end
end

-- The largest number of jobs in one command: each needs two arguments, and `unpack` fails above some 8000.
local MAX_JOBS = 3000

-- Read the record of a new plain job. Returns five values: the initial state ('p' pending or 's' scheduled); the lane;
-- the score in the sorted set of that state (pending: the lane, by rank; scheduled: `due`, by due time); the record to
-- store; the queue.
local function analyse_record(raw)
  local priority, delay, at = struct.unpack('>bI8I8', raw, 70)
  local kind, size = struct.unpack('>I2I2', raw, 40)
  if at == 0 then at = now + delay end
  local lane = string.sub(raw, 87 + kind, 86 + kind + size)
  local queue = string.sub(lane, 1, string.find(lane, '\0', 1, true) - 1)
  local state, score = 'p', at - priority * 600000000
  if at > now then state, score = 's', at end
  local record = state .. string.sub(raw, 2, 70) .. struct.pack('>I8I8', now, at) .. string.sub(raw, 87)
  return state, lane, string.format('%.0f', score), record, queue
end

-- Fast path of form '2' (jobs with equal records, see ARGV[4]): write all jobs with one Redis command per key. Returns
-- their state letters; nil if one of the jobs is already stored.
local function enqueue_uniform()
  local state, lane, score, record, queue = analyse_record(ARGV[5])
  local all, index, records, n = {}, {}, {}, #ARGV - 5
  for i = 1, n, 2 do
    local id = ARGV[i + 5]
    all[i], all[i + 1] = '0', id
    index[i], index[i + 1] = score, id
    records[i], records[i + 1] = id, record
  end
  -- The list contains n / 2 jobs. ZADD returns how many of them it added: fewer if a job is already stored.
  if redis.call('ZADD', SHARD .. 'all', unpack(all)) < n / 2 then return end
  redis.call('HSET', SHARD .. 'doc', unpack(ARGV, 6))
  if state == 's' then
    redis.call('ZADD', SHARD .. 'due', unpack(index))
  else
    redis.call('ZADD', SHARD .. 'lane:' .. lane, unpack(index))
    redis.call('SADD', SHARD .. 'lanes:' .. queue, lane)
  end
  redis.call('HSET', SHARD .. 'job', unpack(records))
  redis.call('HINCRBY', SHARD .. 'count', state .. queue, n / 2)
  return string.rep(state, n / 2)
end

-- Fast path for plain jobs, which most jobs are. It has the result of the general path below,
-- but does not decode records.
if string.byte(ARGV[4]) ~= 48 then
  local shared_record = string.byte(ARGV[4]) == 50 and ARGV[5]
  if shared_record and #ARGV == 7 and hand_off(ARGV[6], shared_record, ARGV[7]) then return { 'r' } end
  local created = shared_record and #ARGV <= 5 + 2 * MAX_JOBS and enqueue_uniform()
  if created then
    announce()
    return { created }
  end
  local states, seen, counts = {}, {}, {}
  -- The arguments of job i begin at ARGV[i * stride]; id_at, record_at and doc_at are offsets from there.
  local stride, id_at, record_at, doc_at = 4, 1, 2, 3
  if shared_record then stride, id_at, doc_at = 2, 4, 5 end
  local total = math.floor((#ARGV - 4) / stride)
  for first = 1, total, MAX_JOBS do
    local last = math.min(first + MAX_JOBS - 1, total)
    local ids = {}
    for i = first, last do ids[i - first + 1] = ARGV[i * stride + id_at] end
    local stored
    if last == first then
      stored = { redis.call('HGET', SHARD .. 'job', ids[1]) }
    else
      stored = redis.call('HMGET', SHARD .. 'job', unpack(ids))
    end
    local records, docs, all, due, lanes = {}, {}, {}, {}, {}
    -- `known` is the record of the previous job as it was sent. The other variables hold what was computed from it.
    -- Jobs of one type usually have equal records, so the next jobs reuse these values.
    local known, state, index, score, record, field
    for k, id in ipairs(ids) do
      local i = first + k - 1
      if stored[k] or seen[id] then
        states[i] = seen[id] or string.sub(stored[k], 1, 1)
      else
        local raw = shared_record or ARGV[i * stride + record_at]
        if raw ~= known then
          known = raw
          local lane, queue
          state, lane, score, record, queue = analyse_record(raw)
          index = state == 's' and due or lanes[lane] or {}
          if state == 'p' then lanes[lane] = index end
          field = state .. queue
        end
        local n = #index
        index[n + 1] = score
        index[n + 2] = id
        n = #records
        records[n + 1] = id
        records[n + 2] = record
        docs[n + 1] = id
        docs[n + 2] = ARGV[i * stride + doc_at]
        all[n + 1] = '0'
        all[n + 2] = id
        counts[field] = (counts[field] or 0) + 1
        states[i], seen[id] = state, state
      end
    end
    if #records > 0 then
      redis.call('HSET', SHARD .. 'doc', unpack(docs))
      redis.call('ZADD', SHARD .. 'all', unpack(all))
      if #due > 0 then redis.call('ZADD', SHARD .. 'due', unpack(due)) end
      for lane, index in pairs(lanes) do
        redis.call('ZADD', SHARD .. 'lane:' .. lane, unpack(index))
        redis.call('SADD', SHARD .. 'lanes:' .. string.sub(lane, 1, string.find(lane, '\0', 1, true) - 1), lane)
      end
      redis.call('HSET', SHARD .. 'job', unpack(records))
    end
  end
  for field, n in pairs(counts) do redis.call('HINCRBY', SHARD .. 'count', field, n) end
  announce()
  return { table.concat(states) }
end

-- include: _record.lua
-- include: _transitions.lua
-- include: _create.lua

-- Check that all blockers exist before the first write, so that a rejected call changes nothing. A blocker may be an
-- earlier job of this call.
local created = {}
for i = 5, #ARGV, 4 do
  for _, blocker in ipairs(decode_blockers(ARGV[i + 3])) do
    if blocker[2] == 'l' and not created[blocker[1]] and not get_last_job(blocker[1]) and not get_job(ARGV[i]) then
      return { '', blocker[1] }
    end
  end
  created[ARGV[i]] = true
end

local reply = { '' }
local states = {}
for i = 5, #ARGV, 4 do
  local state, holder = create(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  states[#states + 1] = holder and string.upper(state) or state
  if holder then reply[#reply + 1] = holder end
end
resolve_all()
write_new()
flush(ARGV[3])
announce()
reply[1] = table.concat(states)
return reply
