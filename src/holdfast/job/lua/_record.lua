-- Purpose: a job's record: how it is laid out, read, and written back once at the end of a script, all changed ones
-- together. Mirrors `record.py`. Expects SHARD.
--
-- A record is a head of 86 bytes, of which a claim and a good end change the first 38; then type, lane, ext and worker; then
-- its tail: the result of a completed job, else the last failure. Its arguments lie apart in `doc`, written once. `ext` is empty for a plain job, else a msgpack array:
-- chain, run, unique key, unique scope (s | d | w), concurrency key, its limit, when (s: all_success, d: all_done), the
-- job that follows, whether it ever waited for others, the unique key's window.
-- States: n being made, s scheduled, b blocked, p pending, r running, c completed, f failed, x cancelled, k skipped.

local HEAD, HEAD_SIZE = '>c1BI8I8I8I4dBI2I2I2I8I8I4I4bI8I8', 86
-- What changes: state, size of the worker's name, fence, finished, started, attempt, progress. Then: flags, sizes of type,
-- lane and ext, keep.
local QUICK, QUICK_SIZE, QUICK_READ = '>c1BI8I8I8I4d', 38, '>c1BI8I8I8I4dBI2I2I2I8'
local WATCHED, CHAIN_WATCHED, CANCEL, LOGGED, OUTPUTS, AWAITED = 1, 2, 4, 8, 16, 32
local CHAIN, RUN, UNIQUE, SCOPE, KEY, LIMIT, WHEN, NEXT, AFTER, WINDOW = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- Fewer arguments than Lua's stack holds, and an even number of them.
local MANY = 6000

-- Records as tables, those of them that have changed, and records that were changed without making a table of them.
local jobs, changed, patched = {}, {}, {}

-- A whole number in full. Scores are few and come again: telling each once is cheaper than to have every one printed.
local texts = {}

local function digits(n)
  local text = texts[n]
  if not text then
    text = string.format('%.0f', n)
    texts[n] = text
  end
  return text
end

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

local function read(id, raw)
  local state, d, fence, finished, started, attempt, progress, flags, a, b, c, keep, keep_failed, snoozes, retries,
    priority, enqueued, due = struct.unpack(HEAD, raw)
  a = HEAD_SIZE + a
  b = a + b
  c = b + c
  d = c + d
  local ext = string.sub(raw, b + 1, c)
  return {
    id = id, state = state, flags = flags, attempt = attempt, retries = retries, snoozes = snoozes, priority = priority,
    enqueued = enqueued, due = due, keep = keep, keep_failed = keep_failed, fence = fence, started = started,
    finished = finished, progress = progress, type = string.sub(raw, HEAD_SIZE + 1, a), lane = string.sub(raw, a + 1, b),
    worker = string.sub(raw, c + 1, d), ext = ext ~= '' and cmsgpack.unpack(ext) or nil, tail = string.sub(raw, d + 1),
  }
end

local function packed(job)
  local ext = job.ext and cmsgpack.pack(job.ext) or ''
  return struct.pack(HEAD, job.state, #job.worker, job.fence, job.finished, job.started, job.attempt, job.progress,
    job.flags, #job.type, #job.lane, #ext, job.keep, job.keep_failed, job.snoozes, job.retries, job.priority,
    job.enqueued, job.due) .. job.type .. job.lane .. ext .. job.worker .. job.tail
end

-- One command for many arguments, in as few calls as they fit into.
local function each(command, key, list)
  for i = 1, #list, MANY do redis.call(command, SHARD .. key, unpack(list, i, math.min(i + MANY - 1, #list))) end
end

local function fields_of(key, ids)
  if #ids == 0 then return {} end
  if #ids <= MANY then return redis.call('HMGET', SHARD .. key, unpack(ids)) end
  local found = {}
  for i = 1, #ids, MANY do
    for _, value in ipairs(redis.call('HMGET', SHARD .. key, unpack(ids, i, math.min(i + MANY - 1, #ids)))) do
      found[#found + 1] = value
    end
  end
  return found
end

-- Read these, unless they have been; `jobs[id]` is false for one that is not there.
local function fetch(ids)
  local missing = {}
  for _, id in ipairs(ids) do
    if jobs[id] == nil then
      jobs[id] = patched[id] and read(id, patched[id]) or false
      if not patched[id] then missing[#missing + 1] = id end
    end
  end
  for i, raw in ipairs(fields_of('job', missing)) do
    if raw then jobs[missing[i]] = read(missing[i], raw) end
  end
end

local function job_of(id)
  if jobs[id] == nil then
    local raw = patched[id] or redis.call('HGET', SHARD .. 'job', id)
    jobs[id] = raw and read(id, raw)
  end
  return jobs[id]
end

local function touch(job)
  changed[job.id] = job
end

local function ext_of(job, field)
  return job.ext and job.ext[field] or ''
end

local function chain_of(job)
  local chain = ext_of(job, CHAIN)
  return chain ~= '' and chain or job.id
end

-- The last job of a chain; false: no such chain, or its record is gone. The id of a follower is no chain's: whoever waited
-- for it would wait for ever.
local function last_of(chain)
  local last = redis.call('HGET', SHARD .. 'chain', chain)
  if last then return job_of(last) end
  local job = job_of(chain)
  return job and chain_of(job) == chain and ext_of(job, NEXT) == '' and job
end

local queue_names = {}

local function queue_of(lane)
  local name = queue_names[lane]
  if not name then
    name = string.sub(lane, 1, string.find(lane, '\0', 1, true) - 1)
    queue_names[lane] = name
  end
  return name
end
