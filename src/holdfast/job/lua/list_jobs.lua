-- Purpose: jobs, newest first. Looks at a bounded number of them; the caller comes again from where it stopped.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = state; 3 = queue; 4 = type; 5 = run ('' for any); 6 = the id before which to begin, or '';
--       7 = how many at most
-- Returns: {the id to go on from, or ''; then for each: id, record, doc, until when its lease lives or false, the chains it
--          waits for}

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
  ids = redis.call('ZREVRANGEBYLEX', SHARD .. 'all', before == '' and '+' or '(' .. before, '-', 'LIMIT', 0, WINDOW_SIZE)
end

local raws, found, last = fields_of('job', ids), { '' }, ''
local matching = {}
for i, raw in ipairs(raws) do
  if #matching == limit then break end
  last = ids[i]
  if raw and (state == '' or string.sub(raw, 1, 1) == state) then
    local job = read(ids[i], raw)
    if (queue == '' or queue_of(job.lane) == queue) and (kind == '' or job.type == kind)
      and (run == '' or ext_of(job, RUN) == run) then
      matching[#matching + 1] = { ids[i], raw, job }
    end
  end
end
for _, match in ipairs(matching) do
  local id, raw, job = match[1], match[2], match[3]
  found[#found + 1] = id
  found[#found + 1] = raw
  found[#found + 1] = redis.call('HGET', SHARD .. 'doc', id)
  found[#found + 1] = job.state == 'r' and redis.call('ZSCORE', SHARD .. 'lease', id)
  found[#found + 1] = ext_of(job, AFTER) == true and redis.call('SMEMBERS', SHARD .. 'waits:' .. id) or {}
end
if not whole and #ids == WINDOW_SIZE then found[1] = last end
return found
