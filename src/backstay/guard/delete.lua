-- Purpose: delete a key, unless a newer fence has written it. Its fence is kept, so that a late write cannot restore it.
-- KEYS: 1 = the value; 2 = its fence
-- ARGV: 1 = fence; 2 = turn; 3 = life of the fence in ms from now on
-- Returns: '' when deleted or absent; else the newer fence, as text

-- include: _fence.lua
local fence_life = tonumber(ARGV[3])

if admitted then
  remember(fence_life)
  redis.call('DEL', KEYS[1])
end
return ''
