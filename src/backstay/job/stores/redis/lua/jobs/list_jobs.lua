-- Purpose: list jobs, newest first. Examines a bounded number of jobs; the caller continues from the returned id.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = state; 3 = queue; 4 = type; 5 = run ('' for any); 6 = only ids before this one ('': all);
--       7 = number of jobs at most
-- Returns: {id to continue from, or '': done; then for each: id, record, doc, end of its lease or false, open blockers}

-- include: _shard.lua
local state, queue, kind, run, before, limit = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
-- include: _record.lua

local WINDOW_SIZE = 1000
local indexes = { s = 'due', r = 'lease', c = 'end:c', f = 'end:f', x = 'end:x', k = 'end:k' }

local ids
local index = indexes[state]
local whole = index and redis.call('ZCARD', SHARD .. index) <= WINDOW_SIZE
if whole then
  ids = {}
  for _, id in ipairs(redis.call('ZRANGE', SHARD .. index, 0, -1)) do
    if before == '' or id < before then ids[#ids + 1] = id end
  end
  table.sort(ids, function(a, b) return a > b end)
else
  local where = run == '' and 'all' or 'run-jobs:' .. run
  ids = redis.call('ZREVRANGEBYLEX', SHARD .. where, before == '' and '+' or '(' .. before, '-', 'LIMIT', 0, WINDOW_SIZE)
end

-- `run-jobs:<run>` holds the jobs of one run only; the index of a state holds jobs of all runs.
local any = queue == '' and kind == '' and (run == '' or not whole)

local function fits(id, raw)
  if state ~= '' and string.sub(raw, 1, 1) ~= state then return false end
  if any then return true end
  local job = read(id, raw)
  return (queue == '' or queue_of(job.lane) == queue) and (kind == '' or job.type == kind)
    and (run == '' or job.ext.run == run)
end

-- Whether its blockers are stored in keys of their own.
local function is_keyed(raw)
  local type_, lane, ext = struct.unpack('>I2I2I2', raw, 40)
  return ext > 0 and has(string.byte(raw, HEAD_SIZE + type_ + lane + 1), KEYED)
end

local found, last = { '' }, ''
local matching, raws = {}, {}
for i, raw in ipairs(fields_of('job', ids)) do
  if #matching == limit then break end
  last = ids[i]
  if raw and fits(ids[i], raw) then
    matching[#matching + 1] = ids[i]
    raws[#raws + 1] = raw
  end
end
local docs = fields_of('doc', matching)
for i, id in ipairs(matching) do
  local raw, n = raws[i], 5 * i
  found[n - 3], found[n - 2], found[n - 1] = id, raw, docs[i]
  found[n] = string.byte(raw) == 114 and redis.call('ZSCORE', SHARD .. 'lease', id)
  found[n + 1] = is_keyed(raw) and redis.call('SMEMBERS', SHARD .. 'waits:' .. id) or {}
end
if not whole and #ids == WINDOW_SIZE then found[1] = last end
return found
