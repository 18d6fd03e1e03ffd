-- Purpose: decode, cache and encode the records of jobs. A script collects changed records and writes them once, at its
-- end. record.py has the same layout. Expects SHARD.
--
-- A job's record is a binary string in the hash `job`. It consists of these parts:
--   * head: 86 bytes of fields with fixed sizes (HEAD);
--   * type, lane (its queue, rate bucket and label set), ext (see below) and the worker's name;
--   * tail: the result of a completed job; for any other job its last failure, or nothing.
-- A claim or a completion changes only the first 38 bytes of the head, the worker's name and the tail. The arguments of
-- the job are in another hash, `doc`, which is written once.
--
-- The ext holds fields that most jobs do not need. It is empty for a plain job, which has no run, chain, blockers,
-- unique key or concurrency key. Otherwise it consists of:
--   * one byte of bits: RARE (the rare fields are present), SEPARATE_WAITS (see below), SOFT (a failure of the job is
--     tolerated: it neither skips dependents nor fails the run);
--   * a letter that says after which outcomes of its blockers the job starts: 's' all_success, 'd' all_done,
--     'f' any_failure;
--   * three bytes: the size of the run's id, the number of dependents in this ext, the number of blockers in this ext;
--   * the run's id;
--   * the ids of at most MAX_INLINE_AWAITING dependents; further ones are in the sorted set `awaiting:<chain>`;
--   * the outcome letters of all blockers, then the chain ids of all blockers;
--   * the rare fields, a msgpack array: chain id, unique key, unique scope ('s' until_start, 'd' until_done,
--     'w' window), concurrency key, limit of the concurrency key, id of the job that continues the chain, window of the
--     unique key in µs.
--
-- Outcome letters of a blocker: 'w' has not ended; '+' completed; '-' failed, or skipped because of a failure;
-- '~' failed, but the failure is tolerated (soft); 'x' cancelled; 'k' skipped for another reason.
-- SEPARATE_WAITS: the job has more than MAX_INLINE_AFTER blockers, or blockers outside its run. Then its blockers are
-- in the keys `waits:<job>` (those that have not ended) and `upstream:<job>` (outcomes), and not in the ext.
-- State letters: 'n' being created, 's' scheduled, 'b' blocked, 'p' pending, 'r' running, 'c' completed, 'f' failed,
-- 'x' cancelled, 'k' skipped.

local HEAD, HEAD_SIZE = '>c1BI8I8I8I4dBI2I2I2I8I8I4I4bI8I8', 86
-- Formats of the library `struct` for the first fields of the head:
--   * ATTEMPT: the fields that a claim or a completion changes: state, size of the worker's name, fence, finished and
--     started (times in µs), attempt, progress
--   * ATTEMPT_SIZE: the size of these fields in bytes
--   * ATTEMPT_READ: the same fields and those that follow them: flags, sizes of type, lane and ext, keep (retention
--     in µs)
local ATTEMPT, ATTEMPT_SIZE, ATTEMPT_READ = '>c1BI8I8I8I4d', 38, '>c1BI8I8I8I4dBI2I2I2I8'
-- Bits of the field `flags`:
--   * JOB_WATCHED, CHAIN_WATCHED: a client waits for the end of the job, or of its chain
--   * CANCEL_REQUESTED: a client requested the cancellation of the running job
--   * AWAITED: the sorted set `awaiting:<chain>` holds dependents of the job
--   * UPSTREAM_FAILED: the job was skipped because a job that it depends on failed
--   * LOGGED, OUTPUTS, ARTIFACTS: the job has the key `log:<job>`, `outputs:<job>` or `artifacts:<job>`, which is
--     deleted with it
local JOB_WATCHED, CHAIN_WATCHED, CANCEL_REQUESTED, LOGGED = 1, 2, 4, 8
local OUTPUTS, AWAITED, UPSTREAM_FAILED, ARTIFACTS = 16, 32, 64, 128
local EXT_HEAD, RARE, SEPARATE_WAITS, SOFT = '>Bc1BBB', 1, 2, 4
-- How many ids a job's record contains at most: of its blockers (MAX_INLINE_AFTER), and of its dependents
-- (MAX_INLINE_AWAITING). If there are more, they are stored in separate keys.
local MAX_INLINE_AFTER, MAX_INLINE_AWAITING = 16, 8
-- The largest number of arguments in one call of a Redis command: `unpack` fails above some 8000 values. The number is
-- even, so that no pair of field and value is split.
local MAX_ARGS = 6000

-- The decoded ext of a plain job. All plain jobs share this table, so a script must not change it: it changes only the
-- table that `edit_ext` returns.
local NO_EXT = { raw = '', when = 's', run = '', chain = '', unique = '', scope = '', key = '', limit = 0, next = '',
  window = 0, soft = false, separate_waits = false, outcomes = '', after = {}, awaiting = {} }
local ext_defaults = { __index = NO_EXT }

-- What this script has read and changed:
--   * jobs: decoded records by job id; false for a job that is not stored
--   * changed: the decoded jobs that `flush` must write, by job id
--   * patched: raw (encoded) records that a fast path changed without decoding and that `flush` must write, by job id
--   * patched_ids: the ids in `patched`, in the order of the changes
local jobs, changed, patched, patched_ids = {}, {}, {}, {}

local formatted = {}

-- Format an integer with all its digits: `tostring` rounds from 10^14 on. The texts are cached, since a script writes
-- the same score for most jobs.
local function format_int(n)
  local text = formatted[n]
  if not text then
    text = string.format('%.0f', n)
    formatted[n] = text
  end
  return text
end

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

-- Read `n` names from a raw record, from offset `at` on. Each name is preceded by its size in one byte. Returns the
-- names and the offset after them.
local function read_names(raw, at, n)
  if n == 0 then return NO_EXT.after, at end
  local names = {}
  for i = 1, n do names[i], at = struct.unpack('>Bc0', raw, at) end
  return names, at
end

local function decode_ext(raw)
  local bits, when, size, awaiting, after = struct.unpack(EXT_HEAD, raw)
  local at = 6 + size
  local ext = setmetatable({ raw = raw, when = when, run = string.sub(raw, 6, at - 1), soft = has(bits, SOFT),
    separate_waits = has(bits, SEPARATE_WAITS) }, ext_defaults)
  ext.awaiting, at = read_names(raw, at, awaiting)
  if after > 0 then
    ext.outcomes_at, ext.outcomes = at, string.sub(raw, at, at + after - 1)
    ext.after, at = read_names(raw, at + after, after)
  end
  if bits % 2 == RARE then
    local rare = cmsgpack.unpack(string.sub(raw, at))
    ext.chain, ext.unique, ext.scope, ext.key = rare[1], rare[2], rare[3], rare[4]
    ext.limit, ext.next, ext.window = rare[5], rare[6], rare[7]
  end
  return ext
end

local function encode_ext(ext)
  local rare = ext.chain ~= '' or ext.unique ~= '' or ext.key ~= '' or ext.next ~= ''
  local bits = (rare and RARE or 0) + (ext.separate_waits and SEPARATE_WAITS or 0) + (ext.soft and SOFT or 0)
  local parts = { struct.pack(EXT_HEAD, bits, ext.when, #ext.run, #ext.awaiting, #ext.after), ext.run }
  for _, name in ipairs(ext.awaiting) do parts[#parts + 1] = string.char(#name) .. name end
  parts[#parts + 1] = ext.outcomes
  for _, name in ipairs(ext.after) do parts[#parts + 1] = string.char(#name) .. name end
  if rare then
    parts[#parts + 1] = cmsgpack.pack({ ext.chain, ext.unique, ext.scope, ext.key, ext.limit, ext.next, ext.window })
  end
  return table.concat(parts)
end

-- Return the decoded ext of a job (see the top of this file) as a table that the caller may change. `encode_job` then
-- encodes this table; without this call it would reuse the ext's encoded bytes.
local function edit_ext(job)
  if job.ext == NO_EXT then job.ext = setmetatable({}, ext_defaults) end
  job.ext.raw = false
  return job.ext
end

-- Record in a job's ext how one of its blockers ended. `position`: the place of the blocker in the ext's list, from 1
-- on. `outcome`: an outcome letter.
local function set_outcome(job, position, outcome)
  local ext = job.ext
  ext.outcomes = string.sub(ext.outcomes, 1, position - 1) .. outcome .. string.sub(ext.outcomes, position + 1)
  if ext.raw then
    local at = ext.outcomes_at + position - 1
    ext.raw = string.sub(ext.raw, 1, at - 1) .. outcome .. string.sub(ext.raw, at + 1)
  end
  changed[job.id] = job
end

local function decode_job(id, raw)
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
    finished = finished, progress = progress, type = string.sub(raw, HEAD_SIZE + 1, a),
    lane = string.sub(raw, a + 1, b), worker = string.sub(raw, c + 1, d), tail = string.sub(raw, d + 1),
    ext = size > 0 and decode_ext(string.sub(raw, b + 1, c)) or NO_EXT,
  }
end

local function encode_job(job)
  local ext = job.ext.raw or encode_ext(job.ext)
  return struct.pack(HEAD, job.state, #job.worker, job.fence, job.finished, job.started, job.attempt, job.progress,
    job.flags, #job.type, #job.lane, #ext, job.keep, job.keep_failed, job.snoozes, job.retries, job.priority,
    job.enqueued, job.due) .. job.type .. job.lane .. ext .. job.worker .. job.tail
end

-- Return the tail of a raw record (the result or the last failure) without decoding the other fields.
local function read_tail(raw)
  local worker, kind, lane, ext = string.byte(raw, 2), struct.unpack('>I2I2I2', raw, 40)
  return string.sub(raw, HEAD_SIZE + kind + lane + ext + worker + 1)
end

-- Call a Redis command on a key with all values of `list`, at most MAX_ARGS per call. Returns the sum of the replies.
local function call_batched(command, key, list)
  local sum, n = 0, #list
  for i = 1, n, MAX_ARGS do
    sum = sum + redis.call(command, SHARD .. key, unpack(list, i, math.min(i + MAX_ARGS - 1, n)))
  end
  return sum
end

-- Return the values of the fields `ids` of a hash, in this order; false for a missing field.
local function get_fields(key, ids)
  if #ids == 0 then return {} end
  if #ids <= MAX_ARGS then return redis.call('HMGET', SHARD .. key, unpack(ids)) end
  local found = {}
  for i = 1, #ids, MAX_ARGS do
    for _, value in ipairs(redis.call('HMGET', SHARD .. key, unpack(ids, i, math.min(i + MAX_ARGS - 1, #ids)))) do
      found[#found + 1] = value
    end
  end
  return found
end

-- Decode the records of these jobs into `jobs`. `jobs[id]` is false for a job that is not stored.
local function fetch(ids)
  local missing = {}
  for _, id in ipairs(ids) do
    if jobs[id] == nil then
      jobs[id] = patched[id] and decode_job(id, patched[id]) or false
      if not patched[id] then missing[#missing + 1] = id end
    end
  end
  for i, raw in ipairs(get_fields('job', missing)) do
    if raw then jobs[missing[i]] = decode_job(missing[i], raw) end
  end
end

-- Return the raw records of these jobs by id, without those that `jobs` already holds decoded.
local function fetch_raw(ids)
  local missing, raws = {}, {}
  for _, id in ipairs(ids) do
    if patched[id] then
      raws[id] = patched[id]
    elseif jobs[id] == nil then
      missing[#missing + 1] = id
    end
  end
  for i, raw in ipairs(get_fields('job', missing)) do raws[missing[i]] = raw end
  return raws
end

-- Return a decoded job; false if it is not stored.
local function get_job(id)
  if jobs[id] == nil then
    local raw = patched[id] or redis.call('HGET', SHARD .. 'job', id)
    jobs[id] = raw and decode_job(id, raw)
  end
  return jobs[id]
end

-- Collect a new raw record of a job; `flush` writes it.
local function patch(id, raw)
  patched[id] = raw
  patched_ids[#patched_ids + 1] = id
end

local function mark_changed(job)
  changed[job.id] = job
end

local function chain_of(job)
  local chain = job.ext.chain
  return chain ~= '' and chain or job.id
end

-- Return the last job of a chain, decoded; false if no chain has this id or the record of its last job is deleted.
-- Also false if `chain` is the id of a later job of a chain, because a chain has the id of its first job. A job that
-- waited for another id would wait forever.
local function get_last_job(chain)
  local last = redis.call('HGET', SHARD .. 'chain', chain)
  local job = last and get_job(last)
  if job then return job end
  -- The hash `chain` may name a job that is not stored: a half-applied script (_transitions.lua) wrote this entry of
  -- the hash, but not the job's record.
  job = get_job(chain)
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
