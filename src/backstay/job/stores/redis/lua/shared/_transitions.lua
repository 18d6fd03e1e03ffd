-- Purpose: all state transitions of jobs. They collect changes of records and indexes, which `flush` writes in batches.
-- Expects SHARD, now and _record.lua.
--
-- Half-applied scripts: a server that is killed may restart with only the first writes of a script
-- (docs/internals/decisions.md). So `flush` adds a job to its new index first, then writes its record, then removes it
-- from the old index. A job may be in two indexes, but never in none. Readers ignore an index entry whose job is in
-- another state. Removals name ids, and counts are written as absolute numbers, so running a script again is safe.
--
-- The index of a job is a sorted set that depends on the job's state:
--   * pending: its lane (`lane:…`, for one queue, rate bucket and label set), by rank;
--   * pending and parked, because as many jobs of its concurrency key run as the key allows: a parking place
--     (`parked:…`, for one concurrency key and lane), by rank;
--   * scheduled: `due`, by due time; running: `lease`, by the end of the lease;
--   * final: `end:<state>`, by the time at which the job may be deleted; +inf for a job of a run, which is deleted with
--     the run.

-- The text after the line `-- inner` becomes a nested function (`script` in calls.py), because that is faster. Lua
-- creates a closure fast if it captures variables of an enclosing function. It is slow for locals of the current
-- function: Lua searches a list of open upvalues for each of them. A script has a hundred locals, so nesting saves a
-- third of its start-up time.
-- inner

-- include: _runs.lua

-- How much one level of priority is worth, in µs (10 minutes): a job with priority 1 is claimed before a job with
-- priority 0, unless that job was due more than 10 minutes earlier. So a job of low priority is not postponed forever.
local AGEING = 600000000

-- What a script collects for `flush` and for its reply:
--   * count_changes: changes of job counts, by field of the hash `count` (a state letter and a queue)
--   * ready: how many jobs became pending, by job type
--   * made_pending: the job type of each job that became pending, by job id
--   * outbox: outcomes of ended chains for waiting jobs in other shards, a flat list: id of the waiting job, chain id,
--     outcome, …
--   * messages: Pub/Sub messages, a flat list: channel, payload, …
local count_changes, ready, made_pending, outbox, messages = {}, {}, {}, {}, {}
-- Changes of the indexes. to_<index>: entries to add, a flat list: score, job id, … from_<index>: job ids to remove.
-- `to_lane` and `from_lane` hold one such list for each lane, `to_end` and `from_end` one for each final state.
local to_lane, to_due, to_end, to_lease = {}, {}, {}, {}
local from_due, from_end, from_lease, from_lane = {}, {}, {}, {}
-- from_parking: entries of parking places to delete, each {job id, key of the parking place, lane}. unparked: the set
-- of the job ids in these entries. unparked_count: for each parking place, how many of its first entries this script
-- has unparked.
local from_parking, unparked, unparked_count = {}, {}, {}
-- The new number of running jobs by concurrency key, for the keys whose number this script changed.
local running = {}
-- What a script collects for `resolve_all` and `write_awaiting`:
--   * ended_jobs: jobs that became final and for which clients or other jobs wait; `resolve_all` empties the list
--   * to_await: new dependents, for each chain a list of entries of `awaiting:<chain>`
--   * received_outcomes: outcomes of blockers that arrived in this script, by id of the waiting job; only for waiting
--     jobs whose blockers are stored outside their record (SEPARATE_WAITS in _record.lua)
--   * receivers: the waiting jobs in `received_outcomes`, in order of arrival
local ended_jobs, to_await, received_outcomes, receivers = {}, {}, {}, {}

-- Return the rank of a job, its score in a lane: the job with the smallest rank is claimed first.
local function rank(job)
  return job.due - job.priority * AGEING
end

-- Append values to the list `lists[name]`. The list is created if it is missing.
local function push(lists, name, ...)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  for i = 1, select('#', ...) do list[#list + 1] = (select(i, ...)) end
end

-- Collect a change of a job count. `field`: a state letter followed by a queue. `by`: the number to add.
local function change_count(field, by)
  count_changes[field] = (count_changes[field] or 0) + by
end

-- Add a job to the count of its state and queue (`by` is 1), or subtract it (-1). A job that is being created (state
-- 'n') is not counted.
local function count_job(job, by)
  if job.state ~= 'n' then change_count(job.state .. queue_of(job.lane), by) end
end

-- Change the state of a job and the job counts. If the job belongs to a run, also change the run's counts and add an
-- event to the run. `state`: a state letter. `why` and `worker` become fields of that event. All transitions call this
-- function, except the fast paths in _uniform.lua, _finish.lua and exchange.lua.
local function change_state(job, state, why, worker)
  local from = job.state
  count_job(job, -1)
  job.state = state
  count_job(job, 1)
  changed[job.id] = job
  local run = job.ext.run ~= '' and get_run(job.ext.run)
  if run then count_transition(run, job.id, from, state, job.ext.soft, job.attempt, worker or job.worker, why) end
end

-- Return the message of a failure that is encoded as msgpack; '' if there is no failure.
local function read_message(failure)
  if failure == '' then return '' end
  return cmsgpack.unpack(failure).message or ''
end

-- Collect a message; `flush` publishes it after all writes.
local function publish_later(channel, payload)
  messages[#messages + 1] = channel
  messages[#messages + 1] = payload
end

local function add_to_lane(job)
  push(to_lane, job.lane, rank(job), job.id)
end

-- Count a job that became pending, so that the script's reply tells the caller to announce it to workers. If this
-- script claims the job afterwards, exchange.lua subtracts the job from the count: it needs no announcement.
local function report_ready(job)
  made_pending[job.id] = job.type
  ready[job.type] = (ready[job.type] or 0) + 1
end

-- Make a job pending, or scheduled if it is not due yet. `why` and `worker` become fields of the run's event.
local function make_pending(job, why, worker)
  if job.due > now then
    change_state(job, 's', why, worker)
    to_due[#to_due + 1] = job.due
    to_due[#to_due + 1] = job.id
    return
  end
  change_state(job, 'p', why, worker)
  add_to_lane(job)
  report_ready(job)
end

-- ── concurrency keys ──

-- Return the Redis key, without SHARD, of a parking place: a sorted set of the parked jobs of one concurrency key and
-- lane.
local function parking_key(key, lane)
  return 'parked:' .. #key .. ':' .. key .. ':' .. lane
end

-- Return the number of running jobs of a concurrency key.
local function get_running(key)
  return running[key] or tonumber(redis.call('HGET', SHARD .. 'running', key) or 0)
end

-- Park a pending job, because as many jobs of its concurrency key run as the key allows. The caller removes the job
-- from its lane.
local function park(job)
  local key = job.ext.key
  local place = parking_key(key, job.lane)
  unparked[job.id], unparked_count[place] = nil, nil
  redis.call('ZADD', SHARD .. place, rank(job), job.id)
  redis.call('ZADD', SHARD .. 'parked-since:' .. queue_of(job.lane), job.due, job.id)
  redis.call('SADD', SHARD .. 'parked-lanes:' .. key, job.lane)
end

-- Remove a job from the parking place of this concurrency key and lane. Does nothing if the job is not parked.
local function leave_parking(id, key, lane)
  from_parking[#from_parking + 1] = { id, parking_key(key, lane), lane }
  unparked[id] = true
end

-- Call this when a concurrency key may have room, for example because a running job of the key ended. In every lane
-- with parked jobs of the key, the first of them is moved back into the lane. Only one of these jobs can start, but
-- some lanes may have no worker. So every lane gets a job back, and a claim parks again those that cannot start.
local function unpark(key)
  for _, lane in ipairs(redis.call('SMEMBERS', SHARD .. 'parked-lanes:' .. key)) do
    local place = parking_key(key, lane)
    local at, is_found = unparked_count[place] or 0, false
    repeat
      local id = redis.call('ZRANGE', SHARD .. place, at, at)[1]
      if not id then
        if at == 0 then redis.call('SREM', SHARD .. 'parked-lanes:' .. key, lane) end
        break
      end
      at = at + 1
      if not unparked[id] then
        local job = get_job(id)
        leave_parking(id, key, lane)
        is_found = job and job.state == 'p'
        if is_found then
          add_to_lane(job)
          report_ready(job)
        end
      end
    until is_found
    unparked_count[place] = at
  end
end

-- End the lease of a job. If the job has a concurrency key, jobs of that key are unparked, one of which may now run.
local function end_lease(job)
  from_lease[#from_lease + 1] = job.id
  local key = job.ext.key
  if key ~= '' then
    running[key] = math.max(0, get_running(key) - 1)
    unpark(key)
  end
end

-- ── unique keys ──

local function unique_key(job)
  return SHARD .. 'unique:' .. job.ext.unique
end

-- Return the id of the job that holds a unique key; nil if the key is free. The value stored at `key` is '<end of the
-- window in µs> <job id>'; the first number is 0 if the key has no window.
local function find_holder(key)
  local stored = redis.call('GET', key)
  if not stored then return nil end
  local expires, id = string.match(stored, '^(%d+) (.*)$')
  expires = tonumber(expires)
  if expires > 0 then return expires > now and id or nil end
  return get_job(id) and id or nil
end

-- Free the unique key of a job, if the job holds it. A key with a window is not freed before the window ends.
local function free_unique(job)
  if job.ext.unique == '' or job.ext.scope == 'w' then return end
  local key = unique_key(job)
  if redis.call('GET', key) == '0 ' .. job.id then redis.call('DEL', key) end
end

-- include: _finish.lua

-- ── writes ──

-- Write the entries of `to_lane` before `flush` does, so that a claim in this script finds these jobs.
local function write_lanes()
  for lane, entries in pairs(to_lane) do
    call_batched('ZADD', 'lane:' .. lane, entries)
    redis.call('SADD', SHARD .. 'lanes:' .. queue_of(lane), lane)
  end
  to_lane = {}
end

-- Return those of `ids`, the ids to remove from an index, that this script does not also add to the index.
-- `added_entries`: the entries to add, a flat list: score, job id, …
local function exclude(ids, added_entries)
  if #added_entries == 0 then return ids end
  local added, left = {}, {}
  for i = 2, #added_entries, 2 do added[added_entries[i]] = true end
  for _, id in ipairs(ids) do
    if not added[id] then left[#left + 1] = id end
  end
  return left
end

-- Write numbers to a hash. `numbers`: the new number of each field. A field whose number is zero is deleted.
local function write_numbers(key, numbers)
  local some, none = {}, {}
  for field, n in pairs(numbers) do
    if n > 0 then
      some[#some + 1] = field
      some[#some + 1] = format_int(n)
    else
      none[#none + 1] = field
    end
  end
  call_batched('HSET', key, some)
  call_batched('HDEL', key, none)
end

-- Return whether the index shows that no job is counted in a field of the hash `count`. `field`: a state letter and a
-- queue. If so, the caller writes 0 instead of adding to the stored number, which a half-applied script may have left
-- wrong. Checked for pending, running and scheduled jobs only.
local function is_index_empty(field)
  local state, queue = string.sub(field, 1, 1), string.sub(field, 2)
  if state == 'p' then
    return redis.call('EXISTS', SHARD .. 'lanes:' .. queue, SHARD .. 'parked-since:' .. queue) == 0
  end
  return (state == 'r' and redis.call('EXISTS', SHARD .. 'lease') == 0)
    or (state == 's' and redis.call('EXISTS', SHARD .. 'due') == 0)
end

local function write_counts()
  local fields, numbers = {}, {}
  for field, by in pairs(count_changes) do
    if by ~= 0 then fields[#fields + 1] = field end
  end
  for i, n in ipairs(get_fields('count', fields)) do
    local field = fields[i]
    numbers[field] = is_index_empty(field) and 0 or tonumber(n or 0) + count_changes[field]
  end
  write_numbers('count', numbers)
end

-- Write everything that the script collected, in the order that "Half-applied scripts" above requires. Call it once, at
-- the end of a script: it does not empty the lists that it has written. `prefix`: the start of the names of all Pub/Sub
-- channels.
local function flush(prefix)
  write_lanes()
  write_awaiting()
  call_batched('ZADD', 'due', to_due)
  call_batched('ZADD', 'lease', to_lease)
  for state, ids in pairs(to_end) do call_batched('ZADD', 'end:' .. state, ids) end
  local records, n = {}, 2 * #patched_ids
  for i, id in ipairs(patched_ids) do records[2 * i - 1], records[2 * i] = id, patched[id] end
  for id, job in pairs(changed) do
    patched[id] = encode_job(job)
    records[n + 1], records[n + 2] = id, patched[id]
    n = n + 2
  end
  call_batched('HSET', 'job', records)
  for lane, ids in pairs(from_lane) do
    call_batched('ZREM', 'lane:' .. lane, ids)
    if redis.call('EXISTS', SHARD .. 'lane:' .. lane) == 0 then
      redis.call('SREM', SHARD .. 'lanes:' .. queue_of(lane), lane)
    end
  end
  for _, entry in ipairs(from_parking) do
    local id, place, lane = unpack(entry)
    if unparked[id] then
      redis.call('ZREM', SHARD .. place, id)
      redis.call('ZREM', SHARD .. 'parked-since:' .. queue_of(lane), id)
    end
  end
  call_batched('ZREM', 'due', exclude(from_due, to_due))
  -- A job can be in both `from_lease` and `to_lease` only if it lost its lease, became pending and was claimed again in
  -- this script. So the lists are compared only if some job became pending.
  call_batched('ZREM', 'lease', next(made_pending) and exclude(from_lease, to_lease) or from_lease)
  for state, ids in pairs(from_end) do call_batched('ZREM', 'end:' .. state, exclude(ids, to_end[state] or {})) end
  write_numbers('running', running)
  write_counts()
  if #changed_runs > 0 then flush_runs(prefix) end
  for i = 1, #messages, 2 do redis.call('PUBLISH', prefix .. ':' .. messages[i], messages[i + 1]) end
end

-- Return the number of jobs that became pending, by job type, as a flat list: type, number, …
local function list_ready()
  local flat = {}
  for kind, n in pairs(ready) do
    if n > 0 then
      flat[#flat + 1] = kind
      flat[#flat + 1] = n
    end
  end
  return flat
end
