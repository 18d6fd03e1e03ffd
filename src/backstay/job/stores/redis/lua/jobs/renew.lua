-- Purpose: renew leases. Only the current lease of a running job is renewed; an expired one is never revived.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = worker; 3 = lease in µs; then for each: job, {fence, progress (below 0: unchanged)}
-- Returns: a letter for each: o (renewed), c (renewed, cancellation requested), l (lost)

-- include: _shard.lua
local worker, lease = ARGV[2], tonumber(ARGV[3])
-- include: _record.lua

local ids, verdicts, leases = {}, {}, {}
for i = 4, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local records = {}
for i, raw in ipairs(fields_of('job', ids)) do
  local fence, progress = struct.unpack('>I8d', ARGV[2 * i + 3])
  local state, flags, its_fence, owner
  if raw then
    local name, kind, lane, ext, _
    state, name, its_fence, _, _, _, _, flags, kind, lane, ext = struct.unpack(QUICK_READ, raw)
    owner = string.sub(raw, HEAD_SIZE + kind + lane + ext + 1, HEAD_SIZE + kind + lane + ext + name)
  end
  if state == 'r' and its_fence == fence and owner == worker then
    leases[#leases + 1] = now + lease
    leases[#leases + 1] = ids[i]
    if progress >= 0 then
      records[#records + 1] = ids[i]
      records[#records + 1] = string.sub(raw, 1, 30) .. struct.pack('>d', progress) .. string.sub(raw, 39)
    end
    verdicts[i] = has(flags, CANCEL) and 'c' or 'o'
  else
    verdicts[i] = 'l'
  end
end
-- GT: a delayed renewal must not shorten a lease that a later one extended.
for i = 1, #leases, MANY do
  redis.call('ZADD', SHARD .. 'lease', 'GT', unpack(leases, i, math.min(i + MANY - 1, #leases)))
end
each('HSET', 'job', records)
return table.concat(verdicts)
