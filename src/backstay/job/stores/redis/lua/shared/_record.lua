-- Purpose: read and write the records of jobs. A script writes all changed records together, once, at its end.
-- Mirrors `record.py`. Expects SHARD.
--
-- A record is a head of 86 bytes (a claim and a completion change the first 38), then type, lane, ext and worker, then the
-- tail: the result of a completed job, else the last failure. The arguments are stored apart in `doc`, written once.
-- `ext` is empty for a plain job, else: bits; when (s: all_success, d: all_done, f: any_failure); the size of the run's id;
-- the number of dependents; the number of blockers; the run's id; the ids of dependents (as many as fit; `awaiting:<chain>`
-- holds the others); one letter and one name for each blocker; and the rare fields as a msgpack array: chain, unique key,
-- unique scope (s | d | w), concurrency key, its limit, follower, window of the unique key.
-- Letters: w has not ended; + completed; - failed (or skipped because of a failure); ~ failed and is soft; x cancelled;
-- k skipped. A job with the bit KEYED has more blockers than fit, or blockers outside its run: those are stored in
-- `waits:<job>` and `upstream:<job>`.
-- States: n being created, s scheduled, b blocked, p pending, r running, c completed, f failed, x cancelled, k skipped.

local HEAD, HEAD_SIZE = '>c1BI8I8I8I4dBI2I2I2I8I8I4I4bI8I8', 86
-- QUICK: the fields that a claim or a completion changes: state, size of the worker's name, fence, finished, started,
-- attempt, progress. QUICK_READ adds flags, sizes of type, lane and ext, and keep.
local QUICK, QUICK_SIZE, QUICK_READ = '>c1BI8I8I8I4d', 38, '>c1BI8I8I8I4dBI2I2I2I8'
local WATCHED, CHAIN_WATCHED, CANCEL, LOGGED, OUTPUTS, AWAITED, BLAMED, ARTIFACTS = 1, 2, 4, 8, 16, 32, 64, 128
local EXT_HEAD, RARE, KEYED, SOFT = '>Bc1BBB', 1, 2, 4
-- Names that a record holds at most: of blockers, and of dependents.
local MOST_AFTER, MOST_AWAITING = 16, 8
-- Arguments of one command: below the limit of Lua's stack, and an even number.
local MANY = 6000

-- The ext of a plain job. Shared, so never write to it: see `own_ext`.
local NO_EXT = { raw = '', when = 's', run = '', chain = '', unique = '', scope = '', key = '', limit = 0, next = '',
  window = 0, soft = false, keyed = false, letters = '', after = {}, awaiting = {} }
local ext_defaults = { __index = NO_EXT }

-- jobs: decoded records; changed: those of them to write back. patched: raw records to write back that were changed without
-- decoding them; patches: their ids in order.
local jobs, changed, patched, patches = {}, {}, {}, {}

-- Format an integer with all its digits. Few distinct scores occur in a script, so a cache is cheaper than formatting each.
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

-- Read n names, each preceded by its size. Returns them and the offset after them.
local function names_of(raw, at, n)
  if n == 0 then return NO_EXT.after, at end
  local names = {}
  for i = 1, n do names[i], at = struct.unpack('>Bc0', raw, at) end
  return names, at
end

local function read_ext(raw)
  local bits, when, size, awaiting, after = struct.unpack(EXT_HEAD, raw)
  local at = 6 + size
  local ext = setmetatable({ raw = raw, when = when, run = string.sub(raw, 6, at - 1), keyed = has(bits, KEYED),
    soft = has(bits, SOFT) }, ext_defaults)
  ext.awaiting, at = names_of(raw, at, awaiting)
  if after > 0 then
    ext.letters_at, ext.letters = at, string.sub(raw, at, at + after - 1)
    ext.after, at = names_of(raw, at + after, after)
  end
  if bits % 2 == RARE then
    local rare = cmsgpack.unpack(string.sub(raw, at))
    ext.chain, ext.unique, ext.scope, ext.key = rare[1], rare[2], rare[3], rare[4]
    ext.limit, ext.next, ext.window = rare[5], rare[6], rare[7]
  end
  return ext
end

local function pack_ext(ext)
  local rare = ext.chain ~= '' or ext.unique ~= '' or ext.key ~= '' or ext.next ~= ''
  local bits = (rare and RARE or 0) + (ext.keyed and KEYED or 0) + (ext.soft and SOFT or 0)
  local parts = { struct.pack(EXT_HEAD, bits, ext.when, #ext.run, #ext.awaiting, #ext.after), ext.run }
  for _, name in ipairs(ext.awaiting) do parts[#parts + 1] = string.char(#name) .. name end
  parts[#parts + 1] = ext.letters
  for _, name in ipairs(ext.after) do parts[#parts + 1] = string.char(#name) .. name end
  if rare then
    parts[#parts + 1] = cmsgpack.pack({ ext.chain, ext.unique, ext.scope, ext.key, ext.limit, ext.next, ext.window })
  end
  return table.concat(parts)
end

-- Return the job's own ext, which may be written to and will be packed again.
local function own_ext(job)
  if job.ext == NO_EXT then job.ext = setmetatable({}, ext_defaults) end
  job.ext.raw = false
  return job.ext
end

-- Set the letter of the blocker at this position.
local function set_letter(job, place, letter)
  local ext = job.ext
  ext.letters = string.sub(ext.letters, 1, place - 1) .. letter .. string.sub(ext.letters, place + 1)
  if ext.raw then
    local at = ext.letters_at + place - 1
    ext.raw = string.sub(ext.raw, 1, at - 1) .. letter .. string.sub(ext.raw, at + 1)
  end
  changed[job.id] = job
end

local function read(id, raw)
  local state, d, fence, finished, started, attempt, progress, flags, a, b, c, keep, keep_failed, snoozes, retries,
    priority, enqueued, due = struct.unpack(HEAD, raw)
  local size = c
  a = HEAD_SIZE + a
  b = a + b
  c = b + c
  d = c + d
  return {
    id = id, state = state, flags = flags, attempt = attempt, retries = retries, snoozes = snoozes, priority = priority,
    enqueued = enqueued, due = due, keep = keep, keep_failed = keep_failed, fence = fence, started = started,
    finished = finished, progress = progress, type = string.sub(raw, HEAD_SIZE + 1, a), lane = string.sub(raw, a + 1, b),
    worker = string.sub(raw, c + 1, d), ext = size > 0 and read_ext(string.sub(raw, b + 1, c)) or NO_EXT,
    tail = string.sub(raw, d + 1),
  }
end

local function packed(job)
  local ext = job.ext.raw or pack_ext(job.ext)
  return struct.pack(HEAD, job.state, #job.worker, job.fence, job.finished, job.started, job.attempt, job.progress,
    job.flags, #job.type, #job.lane, #ext, job.keep, job.keep_failed, job.snoozes, job.retries, job.priority,
    job.enqueued, job.due) .. job.type .. job.lane .. ext .. job.worker .. job.tail
end

-- Return the tail of a record without decoding it.
local function tail_of(raw)
  local worker, kind, lane, ext = string.byte(raw, 2), struct.unpack('>I2I2I2', raw, 40)
  return string.sub(raw, HEAD_SIZE + kind + lane + ext + worker + 1)
end

-- Run a command over many arguments, in as few calls as possible. Returns the sum of the replies.
local function each(command, key, list)
  local sum, n = 0, #list
  for i = 1, n, MANY do sum = sum + redis.call(command, SHARD .. key, unpack(list, i, math.min(i + MANY - 1, n))) end
  return sum
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

-- Decode the records of these jobs, unless they are decoded. `jobs[id]` is false for a job that is not stored.
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

-- Return the raw records of those of these jobs that are not decoded.
local function raw_records(ids)
  local missing, raws = {}, {}
  for _, id in ipairs(ids) do
    if patched[id] then
      raws[id] = patched[id]
    elseif jobs[id] == nil then
      missing[#missing + 1] = id
    end
  end
  for i, raw in ipairs(fields_of('job', missing)) do raws[missing[i]] = raw end
  return raws
end

local function job_of(id)
  if jobs[id] == nil then
    local raw = patched[id] or redis.call('HGET', SHARD .. 'job', id)
    jobs[id] = raw and read(id, raw)
  end
  return jobs[id]
end

-- Replace a raw record.
local function patch(id, raw)
  patched[id] = raw
  patches[#patches + 1] = id
end

local function touch(job)
  changed[job.id] = job
end

local function chain_of(job)
  local chain = job.ext.chain
  return chain ~= '' and chain or job.id
end

-- Return the last job of a chain; false: no such chain, or its record is deleted. The id of a follower does not name a
-- chain: a job that waited for it would wait for ever.
local function last_of(chain)
  local last = redis.call('HGET', SHARD .. 'chain', chain)
  local job = last and job_of(last)
  if job then return job end
  job = job_of(chain) -- a half-applied script (_moves.lua) may have named a job that was never created
  return job and chain_of(job) == chain and job.ext.next == '' and job
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
