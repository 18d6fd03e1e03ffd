-- Purpose: make a run and all of its jobs. A run that is there already is left as it is.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = shards; 3 = prefix of channels; 4 = run; 5 = {version, timeout, keep, workflow}; 6 = its doc;
--       7 = how many jobs; then for each: id, record (one that waits for others, or is skipped, says so by its state), doc;
--       then what does not fit into records: the end of a key (waits: or awaiting: with an id), how many, ids
-- Returns: {its record, its doc if it was there} | {'', a job that is there already} | error SHARDS n

-- include: _shard.lua
-- include: _agree.lua
local id, doc, total = ARGV[4], ARGV[6], tonumber(ARGV[7])
-- include: _record.lua
-- include: _moves.lua

local there = redis.call('HGET', SHARD .. 'run', id)
if there then return { there, redis.call('HGET', SHARD .. 'run-doc', id) } end

local ids = {}
for i = 1, total do ids[i] = ARGV[5 + 3 * i] end
for i, raw in ipairs(fields_of('job', ids)) do
  if raw then return { '', ids[i] } end
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

local docs, all, skipped = {}, {}, {}
-- Jobs that a list was spread over come with the same record: what is made of it is made once.
local known, state, lane, field, score, record
for i, job in ipairs(ids) do
  local raw = ARGV[6 + 3 * i]
  if raw ~= known then
    known = raw
    local priority, delay, at = struct.unpack('>bI8I8', raw, 70)
    local kind, size = struct.unpack('>I2I2', raw, 40)
    lane = string.sub(raw, HEAD_SIZE + kind + 1, HEAD_SIZE + kind + size)
    if at == 0 then at = now + delay end
    local said = string.byte(raw)
    state = said == 98 and 'b' or said == 107 and 'n' or at > now and 's' or 'p'
    field = state .. queue_of(lane)
    score = digits(state == 'p' and at - priority * AGEING or at)
    record = state .. string.sub(raw, 2, 70) .. struct.pack('>I8I8', now, at) .. string.sub(raw, HEAD_SIZE + 1)
  end
  patched[job] = record
  if state == 'p' then
    push(to_lane, lane, score, job)
  elseif state == 's' then
    to_due[#to_due + 1] = score
    to_due[#to_due + 1] = job
  end
  if state == 'n' then
    skipped[#skipped + 1] = job
  else
    add(field, 1)
    moved(run, job, 'n', state, true, 0, '')
  end
  docs[2 * i - 1], docs[2 * i] = job, ARGV[7 + 3 * i]
  all[2 * i - 1], all[2 * i] = '0', job
end
each('HSET', 'doc', docs)
each('ZADD', 'all', all)
each('ZADD', 'run-jobs:' .. id, all)

local at = 8 + 3 * total
while ARGV[at] do
  local key, count, list = ARGV[at], tonumber(ARGV[at + 1]), {}
  local scored = string.sub(key, 1, 9) == 'awaiting:'
  for i = at + 2, at + 1 + count do
    if scored then list[#list + 1] = '0' end
    list[#list + 1] = ARGV[i]
  end
  each(scored and 'ZADD' or 'SADD', key, list)
  at = at + 2 + count
end
for _, job in ipairs(skipped) do final(job_of(job), 'k', '', '') end
settle()
flush(ARGV[3])
return { packed_run(run), false }
