-- Purpose: check a job's lease before a write that belongs to the job, such as its log. Expects SHARD and _record.lua.

-- Return whether a job is running and its lease has this fence. With fence 0, return whether the job is stored. If
-- true, also set a flag (such as LOGGED in _record.lua) in the job's record.
local function flag_if_leased(id, fence, flag)
  local raw = redis.call('HGET', SHARD .. 'job', id)
  if not raw then return false end
  local state, _, current_fence, _, _, _, _, flags = struct.unpack(ATTEMPT_READ, raw)
  if fence ~= 0 and (state ~= 'r' or current_fence ~= fence) then return false end
  if not has(flags, flag) then
    redis.call('HSET', SHARD .. 'job', id, string.sub(raw, 1, 38) .. string.char(flags + flag) .. string.sub(raw, 40))
  end
  return true
end
