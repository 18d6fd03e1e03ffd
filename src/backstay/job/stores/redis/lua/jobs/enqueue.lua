-- Purpose: enqueue jobs, all or none. A job that is already stored is left unchanged.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = shards; 3 = prefix of channels; 4 = '1' if no job has an ext, '2' if all jobs have one record
--       as well, else '0'; followed by the announcements: {counter, number, message, …}; then for each job: id, record,
--       doc, blockers; with '2': the record, then for each job: id, doc
-- Returns: {the state of each job as a letter; upper case: the state of the job that holds its unique key; ids of those}
--          | {'', an unknown chain} | error SHARDS n

-- include: _shard.lua
-- include: _agree.lua

-- function: publish_hint = hub/hint_publish.lua

-- include: _hand_over.lua

local function announce()
  if #ARGV[4] == 1 then return end
  local hints = cmsgpack.unpack(string.sub(ARGV[4], 2))
  for i = 1, #hints, 3 do
    publish_hint({ hints[i] }, { hints[i + 1], HINT_LIFE, ARGV[3] .. ':sched', hints[i + 2] })
  end
end

-- Jobs per command, bounded by its number of arguments.
local MANY_JOBS = 3000

-- Return what a plain job with this record becomes: state, lane, score in the lane (or in `due`), stored record and queue.
local function look_at(raw)
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

-- Store jobs that differ only in id and doc. Returns their states; nothing if one of them is already stored.
local function make_alike()
  local state, lane, score, record, queue = look_at(ARGV[5])
  local all, index, records, n = {}, {}, {}, #ARGV - 5
  for i = 1, n, 2 do
    local id = ARGV[i + 5]
    all[i], all[i + 1] = '0', id
    index[i], index[i + 1] = score, id
    records[i], records[i + 1] = id, record
  end
  -- `all` contains every stored job, and ZADD does not change an existing member.
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

-- The fast path for plain jobs, which are most: same result as below, without decoding records.
if string.byte(ARGV[4]) ~= 48 then
  local shared = string.byte(ARGV[4]) == 50 and ARGV[5]
  if shared and #ARGV == 7 and hand_over(ARGV[6], shared, ARGV[7]) then return { 'r' } end
  local made = shared and #ARGV <= 5 + 2 * MANY_JOBS and make_alike()
  if made then
    announce()
    return { made }
  end
  local states, seen, tally = {}, {}, {}
  -- Offsets of id, record and doc of each job in ARGV.
  local stride, id_at, record_at, doc_at = 4, 1, 2, 3
  if shared then stride, id_at, doc_at = 2, 4, 5 end
  local total = math.floor((#ARGV - 4) / stride)
  for first = 1, total, MANY_JOBS do
    local last = math.min(first + MANY_JOBS - 1, total)
    local ids = {}
    for i = first, last do ids[i - first + 1] = ARGV[i * stride + id_at] end
    local there
    if last == first then
      there = { redis.call('HGET', SHARD .. 'job', ids[1]) }
    else
      there = redis.call('HMGET', SHARD .. 'job', unpack(ids))
    end
    local records, docs, all, due, lanes = {}, {}, {}, {}, {}
    -- Jobs of one type usually have equal records, so the analysis is reused.
    local known, state, index, score, record, field
    for k, id in ipairs(ids) do
      local i = first + k - 1
      if there[k] or seen[id] then
        states[i] = seen[id] or string.sub(there[k], 1, 1)
      else
        local raw = shared or ARGV[i * stride + record_at]
        if raw ~= known then
          known = raw
          local lane, queue
          state, lane, score, record, queue = look_at(raw)
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
        tally[field] = (tally[field] or 0) + 1
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
  for field, n in pairs(tally) do redis.call('HINCRBY', SHARD .. 'count', field, n) end
  announce()
  return { table.concat(states) }
end

-- include: _record.lua
-- include: _moves.lua
-- include: _create.lua

-- Check that all blockers exist before the first write. A blocker may be a job of this call.
local made = {}
for i = 5, #ARGV, 4 do
  for _, blocker in ipairs(blockers(ARGV[i + 3])) do
    if blocker[2] == 'l' and not made[blocker[1]] and not last_of(blocker[1]) and not job_of(ARGV[i]) then
      return { '', blocker[1] }
    end
  end
  made[ARGV[i]] = true
end

local answer = { '' }
local states = {}
for i = 5, #ARGV, 4 do
  local state, other = create(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  states[#states + 1] = other and string.upper(state) or state
  if other then answer[#answer + 1] = other end
end
settle()
store_new()
flush(ARGV[3])
announce()
answer[1] = table.concat(states)
return answer
