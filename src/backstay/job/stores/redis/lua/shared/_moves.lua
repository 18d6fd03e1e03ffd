-- Purpose: every change of a job's state, in one place. What it does to the indexes is gathered and carried out by
-- `flush`, batch by batch. Expects SHARD, now and _record.lua.
--
-- A server that is killed may keep the first writes of a script without the others (docs/internals/decisions.md, "Half a
-- script"). So a job comes into an index before its record says so, and leaves another one after that: an entry whose job is
-- elsewhere means nothing. What leaves is named, and what is counted is written in full: done twice, it is done once.
--
-- A pending job lies in its lane (queue, rate bucket, labels), or parked under its concurrency key while that is full. A
-- scheduled one lies in `due`, a running one in `lease`, a final one in `end:<state>`, with the moment from which it may go;
-- one that goes with its run has no such moment.

-- A function finds a name of another function at once; for a local beside it Lua walks through all that are in use, and a
-- script has a hundred of them. A third of the time that a script spends before it does anything.
-- inner

-- include: _runs.lua

local AGEING = 600000000

local tally, ready, fresh, outbox, published = {}, {}, {}, {}, {}
local to_lane, to_due, to_end, to_lease = {}, {}, {}, {}
local from_due, from_end, from_lease, from_lane = {}, {}, {}, {}
-- Where jobs are parked, those of them that no longer are, and how many of these come first in each place.
local from_parking, unparked, passed = {}, {}, {}
-- How many jobs of a concurrency key run, of those keys for which that has changed.
local running = {}
-- Jobs that have ended and whom that concerns; who is to be told by whom is gathered in `to_await` and `arrivals`.
local ended, to_await, arrivals, arriving = {}, {}, {}, {}

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

-- The one transition (but for a claim and a good end of jobs that have nothing rare, in step.lua). Why, and whose doing it
-- was, is for the run.
local function move(job, state, why, worker)
  local from = job.state
  count(job, -1)
  job.state = state
  count(job, 1)
  changed[job.id] = job
  local run = job.ext.run ~= '' and run_of(job.ext.run)
  if run then moved(run, job.id, from, state, job.ext.soft, job.attempt, worker or job.worker, why) end
end

-- What a failure says.
local function message_of(failure)
  if failure == '' then return '' end
  return cmsgpack.unpack(failure).message or ''
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
  fresh[job.id] = job.type
  ready[job.type] = (ready[job.type] or 0) + 1
end

-- Pending from now on, or scheduled if it is not due yet.
local function enter(job, why, worker)
  if job.due > now then
    move(job, 's', why, worker)
    to_due[#to_due + 1] = job.due
    to_due[#to_due + 1] = job.id
    return
  end
  move(job, 'p', why, worker)
  into_lane(job)
  awake(job)
end

-- ── one key's concurrency ──

local function parking(key, lane)
  return 'parked:' .. #key .. ':' .. key .. ':' .. lane
end

local function running_of(key)
  return running[key] or tonumber(redis.call('HGET', SHARD .. 'running', key) or 0)
end

local function park(job)
  local key = job.ext.key
  local place = parking(key, job.lane)
  unparked[job.id], passed[place] = nil, nil
  redis.call('ZADD', SHARD .. place, rank(job), job.id)
  redis.call('ZADD', SHARD .. 'parked-since:' .. queue_of(job.lane), job.due, job.id)
  redis.call('SADD', SHARD .. 'park:' .. key, job.lane)
end

-- Wherever it may be parked, it is no more.
local function leave_parking(id, key, lane)
  from_parking[#from_parking + 1] = { id, parking(key, lane), lane }
  unparked[id] = true
end

-- Its key may have room: the first parked one of every lane goes back there. Not only the first of all: nobody may be
-- there to take that one.
local function unpark(key)
  for _, lane in ipairs(redis.call('SMEMBERS', SHARD .. 'park:' .. key)) do
    local place = parking(key, lane)
    local at, found = passed[place] or 0, false
    repeat
      local id = redis.call('ZRANGE', SHARD .. place, at, at)[1]
      if not id then
        if at == 0 then redis.call('SREM', SHARD .. 'park:' .. key, lane) end
        break
      end
      at = at + 1
      if not unparked[id] then
        local job = job_of(id)
        leave_parking(id, key, lane)
        found = job and job.state == 'p'
        if found then
          into_lane(job)
          awake(job)
        end
      end
    until found
    passed[place] = at
  end
end

-- A job leaves its worker.
local function leave(job)
  from_lease[#from_lease + 1] = job.id
  local key = job.ext.key
  if key ~= '' then
    running[key] = math.max(0, running_of(key) - 1)
    unpark(key)
  end
end

-- ── one job for a key ──

local function unique_key(job)
  return SHARD .. 'unique:' .. job.ext.unique
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
  if job.ext.unique == '' or job.ext.scope == 'w' then return end
  local key = unique_key(job)
  if redis.call('GET', key) == '0 ' .. job.id then redis.call('DEL', key) end
end

-- include: _ends.lua

-- ── writing ──

-- What has come into lanes so far is there for whoever claims.
local function fill_lanes()
  for lane, pairs_ in pairs(to_lane) do
    each('ZADD', 'lane:' .. lane, pairs_)
    redis.call('SADD', SHARD .. 'lanes:' .. queue_of(lane), lane)
  end
  to_lane = {}
end

-- Those of a list that do not come into the same index again, as pairs of a score and an id.
local function without(ids, coming)
  if #coming == 0 then return ids end
  local back, left = {}, {}
  for i = 2, #coming, 2 do back[coming[i]] = true end
  for _, id in ipairs(ids) do
    if not back[id] then left[#left + 1] = id end
  end
  return left
end

-- Numbers in full, by field; none for nothing.
local function write_numbers(key, numbers)
  local some, none = {}, {}
  for field, n in pairs(numbers) do
    if n > 0 then
      some[#some + 1] = field
      some[#some + 1] = digits(n)
    else
      none[#none + 1] = field
    end
  end
  each('HSET', key, some)
  each('HDEL', key, none)
end

-- Where there is nothing, there are none: a number that half a script has left wrong is right again by then.
local function is_none(field)
  local state, queue = string.sub(field, 1, 1), string.sub(field, 2)
  if state == 'p' then return redis.call('EXISTS', SHARD .. 'lanes:' .. queue, SHARD .. 'parked-since:' .. queue) == 0 end
  return (state == 'r' and redis.call('EXISTS', SHARD .. 'lease') == 0)
    or (state == 's' and redis.call('EXISTS', SHARD .. 'due') == 0)
end

local function write_counts()
  local fields, numbers = {}, {}
  for field, by in pairs(tally) do
    if by ~= 0 then fields[#fields + 1] = field end
  end
  for i, n in ipairs(fields_of('count', fields)) do
    local field = fields[i]
    numbers[field] = is_none(field) and 0 or tonumber(n or 0) + tally[field]
  end
  write_numbers('count', numbers)
end

-- Once, at the end of a script: what was gathered is not forgotten. In this order: see above.
local function flush(prefix)
  fill_lanes()
  write_awaiting()
  each('ZADD', 'due', to_due)
  each('ZADD', 'lease', to_lease)
  for state, ids in pairs(to_end) do each('ZADD', 'end:' .. state, ids) end
  local records, n = {}, 2 * #patches
  for i, id in ipairs(patches) do records[2 * i - 1], records[2 * i] = id, patched[id] end
  for id, job in pairs(changed) do
    patched[id] = packed(job)
    records[n + 1], records[n + 2] = id, patched[id]
    n = n + 2
  end
  each('HSET', 'job', records)
  for lane, ids in pairs(from_lane) do
    each('ZREM', 'lane:' .. lane, ids)
    if redis.call('EXISTS', SHARD .. 'lane:' .. lane) == 0 then
      redis.call('SREM', SHARD .. 'lanes:' .. queue_of(lane), lane)
    end
  end
  for _, gone in ipairs(from_parking) do
    local id, place, lane = unpack(gone)
    if unparked[id] then
      redis.call('ZREM', SHARD .. place, id)
      redis.call('ZREM', SHARD .. 'parked-since:' .. queue_of(lane), id)
    end
  end
  each('ZREM', 'due', without(from_due, to_due))
  -- Only what became pending in this script can have been handed out again.
  each('ZREM', 'lease', next(fresh) and without(from_lease, to_lease) or from_lease)
  for state, ids in pairs(from_end) do each('ZREM', 'end:' .. state, without(ids, to_end[state] or {})) end
  write_numbers('running', running)
  write_counts()
  if #touched > 0 then flush_runs(prefix) end
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
