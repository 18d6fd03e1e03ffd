-- Purpose: set a key, unless a newer fence has written it.
-- KEYS: 1 = the value; 2 = its fence
-- ARGV: 1 = fence; 2 = turn; 3, 4 = life of the value and of the fence in ms (0: no expiry); 5 = value
-- Returns: '' when written; else the newer fence, as text

-- include: _fence.lua
local life, fence_life, value = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

if admitted then
  remember(fence_life)
  if life > 0 then
    redis.call('SET', KEYS[1], value, 'PX', string.format('%.0f', life))
  else
    redis.call('SET', KEYS[1], value)
  end
end
return ''
