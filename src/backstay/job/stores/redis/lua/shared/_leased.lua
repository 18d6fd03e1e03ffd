-- Purpose: check that `fence` is the current lease of a job (0: no check) and set a flag of the job. Expects SHARD and
-- _record.lua.

local function leased(id, fence, flag)
  local raw = redis.call('HGET', SHARD .. 'job', id)
  if not raw then return false end
  local state, _, its_fence, _, _, _, _, flags = struct.unpack(QUICK_READ, raw)
  if fence ~= 0 and (state ~= 'r' or its_fence ~= fence) then return false end
  if not has(flags, flag) then
    redis.call('HSET', SHARD .. 'job', id, string.sub(raw, 1, 38) .. string.char(flags + flag) .. string.sub(raw, 40))
  end
  return true
end
