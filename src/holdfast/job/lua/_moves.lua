-- Purpose: every change of a job's state, in one place. What it does to the indexes is gathered and carried out by
-- `flush`, batch by batch. Expects SHARD, now and _record.lua.
--
-- A pending job lies in its lane (queue, rate bucket, labels), or parked under its concurrency key while that is full. A
-- scheduled one lies in `due`, a running one in `lease`, a final one in `end:<state>`.

local AGEING = 600000000
-- Keys end by the server's clock, whatever a test clock says.
local spare = ARGV[1] ~= '' and 86400000 or 0

local tally, ready, outbox, published = {}, {}, {}, {}
local to_lane, to_due, to_end, to_lease = {}, {}, {}, {}
local from_due, from_end, from_lease = {}, {}, {}
local ended = {}

local function rank(job)
  return job.due - job.priority * AGEING
end

local function push(lists, name, ...)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  for i = 1, select('#', ...) do list[#list + 1] = (select(i, ...)) end
end

-- How many of a queue are in a state, by both in one word.
local function add(field, by)
  tally[field] = (tally[field] or 0) + by
end

-- A job that is being made (n) has not been counted.
local function count(job, by)
  if job.state ~= 'n' then add(job.state .. queue_of(job.lane), by) end
end

-- The one transition. Whatever a job's run wants to know of it belongs here.
local function move(job, state)
  count(job, -1)
  job.state = state
  count(job, 1)
  changed[job.id] = job
end

local function say(channel, payload)
  published[#published + 1] = channel
  published[#published + 1] = payload
end

local function into_lane(job)
  push(to_lane, job.lane, rank(job), job.id)
end

-- Others ought to hear of it, unless this very script hands it out.
local function awake(job)
  job.fresh = true
  ready[job.type] = (ready[job.type] or 0) + 1
end

-- Pending from now on, or scheduled if it is not due yet.
local function enter(job)
  if job.due > now then
    move(job, 's')
    to_due[#to_due + 1] = job.due
    to_due[#to_due + 1] = job.id
    return
  end
  move(job, 'p')
  into_lane(job)
  awake(job)
end

-- ── one key's concurrency ──

local function parking(key, lane)
  return SHARD .. 'parked:' .. #key .. ':' .. key .. ':' .. lane
end

local function park(job)
  local key = job.ext[KEY]
  redis.call('ZADD', parking(key, job.lane), rank(job), job.id)
  redis.call('ZADD', SHARD .. 'parked-since:' .. queue_of(job.lane), job.due, job.id)
  redis.call('SADD', SHARD .. 'park:' .. key, job.lane)
end

-- Its key may have room: the first parked one of every lane goes back there. Not only the first of all: nobody may be
-- there to take that one.
local function unpark(key)
  for _, lane in ipairs(redis.call('SMEMBERS', SHARD .. 'park:' .. key)) do
    local first = redis.call('ZPOPMIN', parking(key, lane))
    if first[1] then
      local job = job_of(first[1])
      redis.call('ZREM', SHARD .. 'parked-since:' .. queue_of(lane), first[1])
      if job and job.state == 'p' then
        into_lane(job)
        awake(job)
      end
    else
      redis.call('SREM', SHARD .. 'park:' .. key, lane)
    end
  end
end

-- A job leaves its worker.
local function leave(job)
  from_lease[#from_lease + 1] = job.id
  local key = ext_of(job, KEY)
  if key ~= '' then
    if redis.call('HINCRBY', SHARD .. 'running', key, -1) <= 0 then redis.call('HDEL', SHARD .. 'running', key) end
    unpark(key)
  end
end

-- ── one job for a key ──

local function unique_key(job)
  return SHARD .. 'unique:' .. job.ext[UNIQUE]
end

-- Who has a unique key now: its job's id, or nil.
local function holder(key)
  local held = redis.call('GET', key)
  if not held then return nil end
  local till, id = string.match(held, '^(%d+) (.*)$')
  till = tonumber(till)
  if till > 0 then return till > now and id or nil end
  return job_of(id) and id or nil
end

local function let_go(job)
  if ext_of(job, UNIQUE) == '' or job.ext[SCOPE] == 'w' then return end
  local key = unique_key(job)
  if redis.call('GET', key) == '0 ' .. job.id then redis.call('DEL', key) end
end

-- ── the end of a job ──

-- A job is final. Its chain ends with it; `settle` tells those who wait for that.
local function final(job, state, tail)
  if job.state == 'r' then leave(job) end
  move(job, state)
  job.finished, job.tail = now, tail
  local keep = state == 'f' and job.keep_failed or job.keep
  push(to_end, state, now + keep, job.id)
  if job.ext then let_go(job) end
  if job.flags > 0 then ended[#ended + 1] = job end
end

-- One chain that a job waits for has come to `result` (false: it did not complete). Twice is once: it leaves a set.
local function resolve(job, chain, result)
  local waits, upstream = SHARD .. 'waits:' .. job.id, SHARD .. 'upstream:' .. job.id
  if redis.call('SREM', waits, chain) == 0 then return end
  redis.call('HSET', upstream, chain, result and '+' .. result or '-')
  if not result then redis.call('HINCRBY', upstream, '', 1) end
  if job.state ~= 'b' then return end
  local needs_all = job.ext[WHEN] == 's'
  if needs_all and not result then
    final(job, 'k', '')
  elseif redis.call('SCARD', waits) == 0 then
    if needs_all and tonumber(redis.call('HGET', upstream, '') or 0) > 0 then
      final(job, 'k', '')
    else
      enter(job)
    end
  end
end

-- Tell everybody who waits for a chain that has ended, and those whom that ends, until nobody is left.
local function settle()
  local i = 1
  while ended[i] do
    local job = ended[i]
    local chain = chain_of(job)
    if ext_of(job, NEXT) ~= '' then
      if has(job.flags, WATCHED) then say('jobc', job.id) end
    elseif has(job.flags, CHAIN_WATCHED) or has(job.flags, WATCHED) then
      say('chainc', chain)
      if has(job.flags, WATCHED) and chain ~= job.id then say('jobc', job.id) end
    end
    if has(job.flags, AWAITED) then
      local result = job.state == 'c' and job.tail
      local here, home = {}, string.match(job.id, '^[^-]*-')
      for _, id in ipairs(redis.call('SMEMBERS', SHARD .. 'awaiting:' .. chain)) do
        if string.sub(id, 1, #home) == home then
          here[#here + 1] = id
        else
          local value = result and '+' .. result or '-'
          redis.call('HSET', SHARD .. 'outbox', id .. ' ' .. chain, value)
          outbox[#outbox + 1] = id
          outbox[#outbox + 1] = chain
          outbox[#outbox + 1] = value
        end
      end
      fetch(here)
      for _, id in ipairs(here) do
        if jobs[id] then resolve(jobs[id], chain, result) end
      end
    end
    i = i + 1
  end
  ended = {}
end

-- ── writing ──

-- What has come into lanes so far is there for whoever claims.
local function fill_lanes()
  for lane, pairs_ in pairs(to_lane) do
    each('ZADD', 'lane:' .. lane, pairs_)
    redis.call('SADD', SHARD .. 'lanes:' .. queue_of(lane), lane)
  end
  to_lane = {}
end

local function flush(prefix)
  fill_lanes()
  each('ZREM', 'due', from_due)
  each('ZADD', 'due', to_due)
  each('ZREM', 'lease', from_lease)
  each('ZADD', 'lease', to_lease)
  for state, ids in pairs(from_end) do each('ZREM', 'end:' .. state, ids) end
  for state, ids in pairs(to_end) do each('ZADD', 'end:' .. state, ids) end
  for id, job in pairs(changed) do patched[id] = packed(job) end
  local records, n = {}, 0
  for id, raw in pairs(patched) do
    records[n + 1], records[n + 2] = id, raw
    n = n + 2
  end
  each('HSET', 'job', records)
  for field, by in pairs(tally) do
    if by ~= 0 and redis.call('HINCRBY', SHARD .. 'count', field, by) <= 0 then
      redis.call('HDEL', SHARD .. 'count', field)
    end
  end
  for i = 1, #published, 2 do redis.call('PUBLISH', prefix .. ':' .. published[i], published[i + 1]) end
end

-- Pairs of type and number, for the reply.
local function made_ready()
  local flat = {}
  for kind, n in pairs(ready) do
    if n > 0 then
      flat[#flat + 1] = kind
      flat[#flat + 1] = n
    end
  end
  return flat
end
