-- Purpose: list jobs, newest first. A call examines at most WINDOW_SIZE jobs. The caller continues from the returned
-- id.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = letter of a state (_record.lua), '' for any
--       3 = a queue's name, '' for any
--       4 = a job type's name, '' for any
--       5 = a run's id, '' for any
--       6 = return only jobs whose id is smaller than this one, '' for all
--       7 = largest number of jobs to return
-- Returns: {id to pass as ARGV[6] of the next call, or '' if there are no more jobs; then five values for each job}
--          The five values: id; record or false; doc (arguments, metadata, blockers); time in µs at which its lease
--            ends, or false; ids of the chains it still waits for, as far as they are not in the record

-- include: _shard.lua
local state, queue, kind, run, before, limit = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
-- include: _record.lua

local WINDOW_SIZE = 1000
local indexes = { s = 'due', r = 'lease', c = 'end:c', f = 'end:f', x = 'end:x', k = 'end:k' }

local ids
-- If the index of the wanted state is small, read it completely instead of searching the ids of all jobs.
local index = indexes[state]
local index_fits = index and redis.call('ZCARD', SHARD .. index) <= WINDOW_SIZE
if index_fits then
  ids = {}
  for _, id in ipairs(redis.call('ZRANGE', SHARD .. index, 0, -1)) do
    if before == '' or id < before then ids[#ids + 1] = id end
  end
  table.sort(ids, function(a, b) return a > b end)
else
  local source, first = run == '' and 'all' or 'run-jobs:' .. run, before == '' and '+' or '(' .. before
  ids = redis.call('ZREVRANGEBYLEX', SHARD .. source, first, '-', 'LIMIT', 0, WINDOW_SIZE)
end

-- Whether no filter except the state is left to check. Ids that were read from `run-jobs:<run>` belong to the wanted
-- run; ids that were read from the index of a state may belong to any run.
local no_filter = queue == '' and kind == '' and (run == '' or not index_fits)

local function fits(id, raw)
  if state ~= '' and string.sub(raw, 1, 1) ~= state then return false end
  if no_filter then return true end
  local job = decode_job(id, raw)
  return (queue == '' or queue_of(job.lane) == queue) and (kind == '' or job.type == kind)
    and (run == '' or job.ext.run == run)
end

-- Whether the blockers of a job that have not ended are stored in the key `waits:<job>` instead of in its record.
local function has_separate_waits(raw)
  local type_, lane, ext = struct.unpack('>I2I2I2', raw, 40)
  return ext > 0 and has(string.byte(raw, HEAD_SIZE + type_ + lane + 1), SEPARATE_WAITS)
end

local found, last = { '' }, ''
local matching, raws = {}, {}
for i, raw in ipairs(get_fields('job', ids)) do
  if #matching == limit then break end
  last = ids[i]
  if raw and fits(ids[i], raw) then
    matching[#matching + 1] = ids[i]
    raws[#raws + 1] = raw
  end
end
local docs = get_fields('doc', matching)
for i, id in ipairs(matching) do
  local raw, n = raws[i], 5 * i
  found[n - 3], found[n - 2], found[n - 1] = id, raw, docs[i]
  found[n] = string.byte(raw) == 114 and redis.call('ZSCORE', SHARD .. 'lease', id)
  found[n + 1] = has_separate_waits(raw) and redis.call('SMEMBERS', SHARD .. 'waits:' .. id) or {}
end
if not index_fits and #ids == WINDOW_SIZE then found[1] = last end
return found
