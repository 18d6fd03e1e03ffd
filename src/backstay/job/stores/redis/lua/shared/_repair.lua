-- Purpose: repair the traces of half-applied scripts (_moves.lua), which later scripts do not notice. Examines a bounded
-- number of jobs and continues where the last call stopped. Expects SHARD, now, _record.lua and _moves.lua.

-- Jobs per call: a few hundred take some milliseconds, during which the server answers no other client.
local WALK, PARKED = 400, 20

-- Number of running jobs by concurrency key; false: too many jobs run to count them.
local held

local function count_held()
  held = redis.call('ZCARD', SHARD .. 'lease') <= MANY and {}
  if not held then return end
  local ids = redis.call('ZRANGE', SHARD .. 'lease', 0, -1)
  fetch(ids)
  for _, id in ipairs(ids) do
    local job = jobs[id]
    if job and job.state == 'r' then held[job.ext.key] = (held[job.ext.key] or 0) + 1 end
  end
end

-- Repair the running count of a parked job's key, and unpark jobs if the key has room. Once per key.
local seen = {}

local function mend_key(job)
  local key = job.ext.key
  if seen[key] then return end
  seen[key] = true
  if held == nil then count_held() end
  local n = running_of(key)
  if held and (held[key] or 0) ~= n then
    n = held[key] or 0
    running[key] = n
  end
  for _ = n + 1, math.min(job.ext.limit, n + PARKED) do unpark(key) end
end

local function mend_parked(queue)
  local since = SHARD .. 'parked-since:' .. queue
  -- A random sample: there may be many, and later calls examine others.
  for _, id in ipairs(redis.call('ZRANDMEMBER', since, PARKED)) do
    local job = job_of(id)
    if not job or job.state ~= 'p' then
      redis.call('ZREM', since, id)
    elseif job.ext.key ~= '' then
      mend_key(job)
    end
  end
end

-- Restore the invariant that a pending job is parked, or in its lane with the lane listed.
local function mend_pending(job)
  local key = job.ext.key
  if key ~= '' and redis.call('ZSCORE', SHARD .. parking(key, job.lane), job.id) then
    mend_key(job)
  else
    into_lane(job)
  end
end

-- Resolve blockers of this shard that have ended although the job still waits for them. Other shards deliver repeatedly.
local function mend_blocked(job)
  local home, waits = string.match(job.id, '^[^-]*-'), SHARD .. 'waits:' .. job.id
  for _, chain in ipairs(job.ext.keyed and redis.call('SRANDMEMBER', waits, PARKED) or job.ext.after) do
    local last = string.sub(chain, 1, #home) == home and last_of(chain)
    if last and last.finished > 0 then resolve(job, chain, letter_of(last) == '+' and '+' .. last.tail or letter_of(last)) end
  end
end

local function mend()
  for _, field in ipairs(redis.call('HKEYS', SHARD .. 'count')) do
    if string.sub(field, 1, 1) == 'p' then mend_parked(string.sub(field, 2)) end
  end
  local last = redis.call('HGET', KEYS[1], 'mended')
  local ids = redis.call('ZRANGEBYLEX', SHARD .. 'all', last and '(' .. last or '-', '+', 'LIMIT', 0, WALK)
  for i, raw in ipairs(fields_of('job', ids)) do
    local state, id = raw and string.byte(raw), ids[i]
    if state == 112 or state == 98 then
      jobs[id] = jobs[id] or read(id, raw)
      if state == 112 then mend_pending(jobs[id]) else mend_blocked(jobs[id]) end
    end
  end
  settle()
  if #ids == WALK then
    redis.call('HSET', KEYS[1], 'mended', ids[WALK])
  elseif last then
    redis.call('HDEL', KEYS[1], 'mended')
  end
end
