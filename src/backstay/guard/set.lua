-- Purpose: set a key, unless a holder with a newer fence has written it.
-- KEYS: 1 = the key to set
--       2 = the record of the fence that last wrote the key
-- ARGV: 1 = the caller's fence
--       2 = the number of this write, which grows with each write of the process
--       3 = the TTL of the value in ms (0: without expiry)
--       4 = how long the fence is stored from now on, in ms (0: without expiry)
--       5 = the value
-- Returns: '' if the value is written, or if this request is a delayed duplicate of an earlier write of the same
--          holder; otherwise the newer fence, as text

-- include: _fence.lua
local life, fence_life, value = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

if admitted then
  store_fence(fence_life)
  if life > 0 then
    redis.call('SET', KEYS[1], value, 'PX', string.format('%.0f', life))
  else
    redis.call('SET', KEYS[1], value)
  end
end
return ''
