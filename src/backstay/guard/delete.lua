-- Purpose: delete a key, unless a holder with a newer fence has written it. The fence stays stored, so that a delayed
--   write of an earlier holder cannot restore the deleted key.
-- KEYS: 1 = the key to delete
--       2 = the record of the fence that last wrote the key
-- ARGV: 1 = the caller's fence
--       2 = the number of this write: a process numbers its writes, so that a delayed duplicate is recognised
--       3 = how long the fence is stored from now on, in ms (0: without expiry)
-- Returns: '' if the key is deleted or was absent, or the write is an outdated duplicate; otherwise the newer fence, as
--          text

-- include: _fence.lua
local fence_life = tonumber(ARGV[3])

if admitted then
  store_fence(fence_life)
  redis.call('DEL', KEYS[1])
end
return ''
