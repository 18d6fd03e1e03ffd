-- Purpose: all state transitions of jobs. They collect index changes, which `flush` writes in batches. Expects SHARD, now
-- and _record.lua.
--
-- A server that is killed may keep the first writes of a script without the others (docs/internals/decisions.md,
-- "Half-applied scripts"). So a script adds a job to its new index first, then writes its record, then removes it from
-- the old index: an index entry whose job is in another state is ignored. Removals name their members and counts are
-- written as absolute numbers, so repeating a script is idempotent.
--
-- A pending job is in its lane (queue, rate bucket, labels), or parked under its concurrency key while that is full. A
-- scheduled job is in `due`, a running one in `lease`, a final one in `end:<state>`, scored by the time at which it may be
-- deleted; +inf for a job that is deleted with its run.

-- A closure copies a reference to a variable of an enclosing function, but Lua searches the list of open variables for each
-- one of the current function, and a script has a hundred of them. The nested function saves a third of a script's start-up.
-- inner

-- include: _runs.lua

local AGEING = 600000000

local tally, ready, fresh, outbox, published = {}, {}, {}, {}, {}
local to_lane, to_due, to_end, to_lease = {}, {}, {}, {}
local from_due, from_end, from_lease, from_lane = {}, {}, {}, {}
-- from_parking: parking entries to delete; unparked: their ids; passed: the number of leading entries of each parking place
-- that are already unparked.
local from_parking, unparked, passed = {}, {}, {}
-- Number of running jobs of each concurrency key that changed.
local running = {}
-- ended: final jobs with watchers or dependents. to_await: new dependents by chain. arrivals, arriving: outcomes that
-- KEYED jobs received in this script, and those jobs in order.
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

-- Change a count; the field is the state's letter followed by the queue.
local function add(field, by)
  tally[field] = (tally[field] or 0) + by
end

-- A job that is being created (n) is not counted yet.
local function count(job, by)
  if job.state ~= 'n' then add(job.state .. queue_of(job.lane), by) end
end

-- Change the state of a job. Only the claim and the completion of jobs without rare fields bypass it (exchange.lua). `why`
-- and `worker` go into the run's event.
local function move(job, state, why, worker)
  local from = job.state
  count(job, -1)
  job.state = state
  count(job, 1)
  changed[job.id] = job
  local run = job.ext.run ~= '' and run_of(job.ext.run)
  if run then moved(run, job.id, from, state, job.ext.soft, job.attempt, worker or job.worker, why) end
end

-- Return the message of an encoded failure.
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

-- Report the job as ready, so that the caller announces it. A claim in the same script subtracts it again.
local function awake(job)
  fresh[job.id] = job.type
  ready[job.type] = (ready[job.type] or 0) + 1
end

-- Make a job pending, or scheduled if it is not due yet.
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

-- ── concurrency keys ──

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

-- Remove a job from its parking place, if it is parked.
local function leave_parking(id, key, lane)
  from_parking[#from_parking + 1] = { id, parking(key, lane), lane }
  unparked[id] = true
end

-- Return the first parked job of every lane to it, since the key may have room. One lane is not enough: it may have no
-- worker.
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

-- End the lease of a job and free its concurrency key.
local function leave(job)
  from_lease[#from_lease + 1] = job.id
  local key = job.ext.key
  if key ~= '' then
    running[key] = math.max(0, running_of(key) - 1)
    unpark(key)
  end
end

-- ── unique keys ──

local function unique_key(job)
  return SHARD .. 'unique:' .. job.ext.unique
end

-- Return the id of the job that holds a unique key, or nil.
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

-- ── writes ──

-- Write the lanes, so that a claim in this script finds the new jobs.
local function fill_lanes()
  for lane, pairs_ in pairs(to_lane) do
    each('ZADD', 'lane:' .. lane, pairs_)
    redis.call('SADD', SHARD .. 'lanes:' .. queue_of(lane), lane)
  end
  to_lane = {}
end

-- Return the ids that are not added to the same index again; `coming` holds scores and ids in turn.
local function without(ids, coming)
  if #coming == 0 then return ids end
  local back, left = {}, {}
  for i = 2, #coming, 2 do back[coming[i]] = true end
  for _, id in ipairs(ids) do
    if not back[id] then left[#left + 1] = id end
  end
  return left
end

-- Write absolute numbers by field; delete fields that are zero.
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

-- Whether the index behind a count is empty. Then the count is zero, which repairs a count that a half-applied script left
-- wrong.
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

-- Write everything that was collected. Call it once, at the end of a script: it does not reset what it wrote. The order
-- matters, see the top of this file.
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
  -- Only a job that became pending in this script can also have been claimed in it.
  each('ZREM', 'lease', next(fresh) and without(from_lease, to_lease) or from_lease)
  for state, ids in pairs(from_end) do each('ZREM', 'end:' .. state, without(ids, to_end[state] or {})) end
  write_numbers('running', running)
  write_counts()
  if #touched > 0 then flush_runs(prefix) end
  for i = 1, #published, 2 do redis.call('PUBLISH', prefix .. ':' .. published[i], published[i + 1]) end
end

-- Return the ready counts as a flat list of type and number.
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
