-- Purpose: renew leases. Only the worker of a running job can renew its lease; a lease that was reaped is lost.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the worker's id
--       3 = new duration of the leases in µs, counted from now
--       from 4 on, two values for each lease: the job's id; packed {fence of the lease, the job's progress to store
--         (below 0: none)}
-- Returns: a string with a letter for each lease: 'o' (renewed), 'c' (renewed; the job's cancellation is requested) or
--            'l' (lost)

-- include: _shard.lua
-- include: _when_full.lua
local worker, lease = ARGV[2], tonumber(ARGV[3])
-- include: _record.lua

local ids, verdicts, leases = {}, {}, {}
for i = 4, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local records = {}
for i, raw in ipairs(get_fields('job', ids)) do
  local fence, progress = struct.unpack('>I8d', ARGV[2 * i + 3])
  local state, flags, current_fence, owner
  if raw then
    local name, kind, lane, ext, _
    state, name, current_fence, _, _, _, _, flags, kind, lane, ext = struct.unpack(ATTEMPT_READ, raw)
    owner = string.sub(raw, HEAD_SIZE + kind + lane + ext + 1, HEAD_SIZE + kind + lane + ext + name)
  end
  if state == 'r' and current_fence == fence and owner == worker then
    leases[#leases + 1] = now + lease
    leases[#leases + 1] = ids[i]
    if progress >= 0 then
      records[#records + 1] = ids[i]
      records[#records + 1] = string.sub(raw, 1, 30) .. struct.pack('>d', progress) .. string.sub(raw, 39)
    end
    verdicts[i] = has(flags, CANCEL_REQUESTED) and 'c' or 'o'
  else
    verdicts[i] = 'l'
  end
end
-- With GT, ZADD only increases a score: a delayed renewal must not shorten a lease that a later renewal extended.
for i = 1, #leases, MAX_ARGS do
  redis.call('ZADD', SHARD .. 'lease', 'GT', unpack(leases, i, math.min(i + MAX_ARGS - 1, #leases)))
end
call_batched('HSET', 'job', records)
return table.concat(verdicts)
