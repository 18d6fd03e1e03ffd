-- Purpose: create a run with all of its jobs. A run that is already stored is left unchanged.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the caller's number of shards
--       3 = prefix of the Pub/Sub channels' names
--       4 = the run's id
--       5 = msgpack array of the run's fields: version of the workflow, timeout in µs (0: none), retention after its
--         end in µs, name of the workflow
--       6 = the run's document (inputs, job names, trigger)
--       7 = number of jobs
--       from 8 on, for each group of consecutive jobs with equal records: the common record (its state is 'b' if the
--         jobs have blockers, 'k' if they are skipped at once); number of jobs; then id and doc (arguments, metadata,
--         blockers) of each job
--       then two values for each list of blockers or dependents that does not fit into a record: the key 'waits:<job>'
--         (blockers) or 'awaiting:<job>' (dependents); the listed jobs as packed ranges, each with the position of
--         its first job in this call and its number of jobs
-- Returns: {the run's record, false} if the run was created
--          or {the run's record, its document} if the run was already stored
--          or {'', the job's id} if a job of another run or of no run already has this id
--          or error 'SHARDS <stored number>' if the caller's number of shards differs

-- include: _shard.lua
-- include: _check_shards.lua
local id, doc, total = ARGV[4], ARGV[6], tonumber(ARGV[7])
-- include: _record.lua
-- include: _transitions.lua

local stored = redis.call('HGET', SHARD .. 'run', id)
if stored then return { stored, redis.call('HGET', SHARD .. 'run-doc', id) } end

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
-- A job of this run may be stored although the run is not: an earlier call of this script wrote it, and the server was
-- killed before it stored the other writes (_transitions.lua). The job is overwritten.
for i, raw in ipairs(get_fields('job', ids)) do
  if raw and decode_job(ids[i], raw).ext.run ~= id then return { '', ids[i] } end
end

local _, version, timeout, keep, workflow = cmsgpack.unpack_limit(ARGV[5], 4, 1)
local run = {
  id = id, status = 'q', created = now, started = 0, finished = 0, deadline = timeout > 0 and now + timeout or 0,
  timeout = timeout, keep = keep, events = 0, version = version, hard_failures = 0, workflow = workflow, reason = '',
  counts = { s = 0, b = 0, p = 0, r = 0, c = 0, f = 0, x = 0, k = 0 }, new_events = {},
}
runs[id] = run
redis.call('HSET', SHARD .. 'run-doc', id, doc)
update_run_lists('ZADD', run, '')
add_event(run, 'n', '', 0, '')

local skipped = {}
for _, row in ipairs(rows) do
  local raw, size = row.raw, row.last - row.first + 1
  local priority, delay, due = struct.unpack('>bI8I8', raw, 70)
  local kind, length = struct.unpack('>I2I2', raw, 40)
  local lane = string.sub(raw, HEAD_SIZE + kind + 1, HEAD_SIZE + kind + length)
  if due == 0 then due = now + delay end
  local requested_state = string.byte(raw)
  local state = requested_state == 98 and 'b' or requested_state == 107 and 'n' or due > now and 's' or 'p'
  local score = format_int(state == 'p' and due - priority * AGEING or due)
  local record = state .. string.sub(raw, 2, 70) .. struct.pack('>I8I8', now, due) .. string.sub(raw, HEAD_SIZE + 1)
  for i = row.first, row.last do patch(ids[i], record) end
  if state ~= 'n' then change_count(state .. queue_of(lane), size) end
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
        count_transition(run, job, 'n', state, true, 0, '')
      end
    end
  end
end
call_batched('HSET', 'doc', docs)
call_batched('ZADD', 'all', all)
call_batched('ZADD', 'run-jobs:' .. id, all)

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
  call_batched(scored and 'ZADD' or 'SADD', key, list)
  at = at + 2
end
for _, job in ipairs(skipped) do end_job(get_job(job), 'k', '', '') end
resolve_all()
flush(ARGV[3])
return { encode_run(run), false }
