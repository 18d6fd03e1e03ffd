-- Purpose: repair what half-applied scripts (_transitions.lua) left inconsistent and no later script corrects:
-- pending jobs that are missing from their lane, blocked jobs without an open blocker, and wrong numbers of running
-- jobs of concurrency keys. Each call examines some jobs and continues where the previous call stopped. Expects SHARD,
-- now, _record.lua and _transitions.lua.

-- MAX_JOBS: the largest number of jobs that one call examines. Examining a few hundred takes some milliseconds, in
-- which the server answers no other client. SAMPLE: how many parked jobs of a queue one call examines, chosen at
-- random, and how many blockers of a job whose blockers are in the key `waits:<job>` instead of its record.
local MAX_JOBS, SAMPLE = 400, 20

-- The number of running jobs by concurrency key. nil: they are not counted yet. false: there are too many running jobs
-- to count them.
local running_by_key

local function count_running()
  running_by_key = redis.call('ZCARD', SHARD .. 'lease') <= MAX_ARGS and {}
  if not running_by_key then return end
  local ids = redis.call('ZRANGE', SHARD .. 'lease', 0, -1)
  fetch(ids)
  for _, id in ipairs(ids) do
    local job = jobs[id]
    if job and job.state == 'r' then running_by_key[job.ext.key] = (running_by_key[job.ext.key] or 0) + 1 end
  end
end

-- Concurrency keys that this call has already examined.
local seen = {}

-- Correct the running count of a parked job's concurrency key, and unpark jobs if the key has room.
local function repair_key(job)
  local key = job.ext.key
  if seen[key] then return end
  seen[key] = true
  if running_by_key == nil then count_running() end
  local n = get_running(key)
  if running_by_key and (running_by_key[key] or 0) ~= n then
    n = running_by_key[key] or 0
    running[key] = n
  end
  for _ = n + 1, math.min(job.ext.limit, n + SAMPLE) do unpark(key) end
end

-- Repair the concurrency keys of some parked jobs of a queue. Delete entries of `parked-since:<queue>` whose job is no
-- longer pending.
local function repair_parked(queue)
  local since = SHARD .. 'parked-since:' .. queue
  -- A queue may have many parked jobs. A random sample is examined, so that later calls examine other jobs.
  for _, id in ipairs(redis.call('ZRANDMEMBER', since, SAMPLE)) do
    local job = get_job(id)
    if not job or job.state ~= 'p' then
      redis.call('ZREM', since, id)
    elseif job.ext.key ~= '' then
      repair_key(job)
    end
  end
end

-- Restore the invariant: a pending job is either parked, or it is in its lane and `lanes:<queue>` contains the lane. A
-- job that is not parked is added to its lane, which changes nothing if it is already there.
local function repair_pending(job)
  local key = job.ext.key
  if key ~= '' and redis.call('ZSCORE', SHARD .. parking_key(key, job.lane), job.id) then
    repair_key(job)
  else
    add_to_lane(job)
  end
end

-- Find blockers of this shard that have ended although the job still waits for them, and record their outcomes.
-- Blockers of other shards need no repair: the outbox delivers their outcomes until they are acknowledged.
local function repair_blocked(job)
  local home, waits = string.match(job.id, '^[^-]*-'), SHARD .. 'waits:' .. job.id
  for _, chain in ipairs(job.ext.separate_waits and redis.call('SRANDMEMBER', waits, SAMPLE) or job.ext.after) do
    local last = string.sub(chain, 1, #home) == home and get_last_job(chain)
    if last and last.finished > 0 then
      local outcome = outcome_of(last)
      resolve(job, chain, outcome == '+' and '+' .. last.tail or outcome)
    end
  end
end

-- Examine the next MAX_JOBS jobs, in the order of ids, and repair them. The changes are only collected: the including
-- script must call `flush` (_transitions.lua) to write them.
local function repair()
  for _, field in ipairs(redis.call('HKEYS', SHARD .. 'count')) do
    if string.sub(field, 1, 1) == 'p' then repair_parked(string.sub(field, 2)) end
  end
  local last = redis.call('HGET', KEYS[1], 'repaired')
  local ids = redis.call('ZRANGEBYLEX', SHARD .. 'all', last and '(' .. last or '-', '+', 'LIMIT', 0, MAX_JOBS)
  for i, raw in ipairs(get_fields('job', ids)) do
    local state, id = raw and string.byte(raw), ids[i]
    if state == 112 or state == 98 then
      jobs[id] = jobs[id] or decode_job(id, raw)
      if state == 112 then repair_pending(jobs[id]) else repair_blocked(jobs[id]) end
    end
  end
  resolve_all()
  if #ids == MAX_JOBS then
    redis.call('HSET', KEYS[1], 'repaired', ids[MAX_JOBS])
  elseif last then
    redis.call('HDEL', KEYS[1], 'repaired')
  end
end
