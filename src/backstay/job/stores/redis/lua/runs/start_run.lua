-- Purpose: create a run with all of its jobs. A run that is already stored is left unchanged.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = shards; 3 = prefix of channels; 4 = run; 5 = {version, timeout, keep, workflow}; 6 = doc;
--       7 = number of jobs; then for each sequence of jobs with one record: the record (state b: it has blockers, k: it is
--       skipped), number of jobs, then id and doc of each; then the waits that do not fit into records: suffix of a key
--       (waits:<job> or awaiting:<job>) and positions of jobs as ranges: first position, length
-- Returns: {record, doc if it was stored before} | {'', a job that is already stored} | error SHARDS n

-- include: _shard.lua
-- include: _agree.lua
local id, doc, total = ARGV[4], ARGV[6], tonumber(ARGV[7])
-- include: _record.lua
-- include: _moves.lua

local there = redis.call('HGET', SHARD .. 'run', id)
if there then return { there, redis.call('HGET', SHARD .. 'run-doc', id) } end

local ids, docs, all, rows, at = {}, {}, {}, {}, 8
while #ids < total do
  local first, size = #ids + 1, tonumber(ARGV[at + 1])
  rows[#rows + 1] = { raw = ARGV[at], first = first, last = first + size - 1 }
  at = at + 2
  for i = first, first + size - 1 do
    local job = ARGV[at]
    ids[i], docs[2 * i - 1], docs[2 * i], all[2 * i - 1], all[2 * i] = job, job, ARGV[at + 1], '0', job
    at = at + 2
  end
end
-- A stored job of this run, which itself is not stored, comes from a half-applied script (_moves.lua): it is overwritten.
for i, raw in ipairs(fields_of('job', ids)) do
  if raw and read(ids[i], raw).ext.run ~= id then return { '', ids[i] } end
end

local _, version, timeout, keep, workflow = cmsgpack.unpack_limit(ARGV[5], 4, 1)
local run = {
  id = id, status = 'q', created = now, started = 0, finished = 0, deadline = timeout > 0 and now + timeout or 0,
  timeout = timeout, keep = keep, events = 0, version = version, hard = 0, workflow = workflow, reason = '',
  counts = { s = 0, b = 0, p = 0, r = 0, c = 0, f = 0, x = 0, k = 0 }, told = {},
}
runs[id] = run
redis.call('HSET', SHARD .. 'run-doc', id, doc)
list_run('ZADD', run, '')
tell(run, 'n', '', 0, '')

local skipped = {}
for _, row in ipairs(rows) do
  local raw, size = row.raw, row.last - row.first + 1
  local priority, delay, due = struct.unpack('>bI8I8', raw, 70)
  local kind, length = struct.unpack('>I2I2', raw, 40)
  local lane = string.sub(raw, HEAD_SIZE + kind + 1, HEAD_SIZE + kind + length)
  if due == 0 then due = now + delay end
  local said = string.byte(raw)
  local state = said == 98 and 'b' or said == 107 and 'n' or due > now and 's' or 'p'
  local score = digits(state == 'p' and due - priority * AGEING or due)
  local record = state .. string.sub(raw, 2, 70) .. struct.pack('>I8I8', now, due) .. string.sub(raw, HEAD_SIZE + 1)
  for i = row.first, row.last do patch(ids[i], record) end
  if state ~= 'n' then add(state .. queue_of(lane), size) end
  if state == 'b' then
    run.counts.b = run.counts.b + size -- blocked jobs have no event
  else
    for i = row.first, row.last do
      local job = ids[i]
      if state == 'p' then
        push(to_lane, lane, score, job)
      elseif state == 's' then
        to_due[#to_due + 1] = score
        to_due[#to_due + 1] = job
      end
      if state == 'n' then
        skipped[#skipped + 1] = job
      else
        moved(run, job, 'n', state, true, 0, '')
      end
    end
  end
end
each('HSET', 'doc', docs)
each('ZADD', 'all', all)
each('ZADD', 'run-jobs:' .. id, all)

while ARGV[at] do
  local key, where, list = ARGV[at], ARGV[at + 1], {}
  local scored = string.sub(key, 1, 9) == 'awaiting:'
  for k = 1, #where, 8 do
    local first, size = struct.unpack('>I4I4', where, k)
    for i = first, first + size - 1 do
      if scored then list[#list + 1] = '0' end
      list[#list + 1] = ids[i]
    end
  end
  each(scored and 'ZADD' or 'SADD', key, list)
  at = at + 2
end
for _, job in ipairs(skipped) do final(job_of(job), 'k', '', '') end
settle()
flush(ARGV[3])
return { packed_run(run), false }
