-- Purpose: the common start of every guarded write: compare the caller's fence with the stored one.
-- The fence's record is '<fence> <turn>'. Turns grow with each write of one process, so that a delayed duplicate of an
-- earlier write of the same holder is recognized. Defines `admitted` (false: a duplicate, nothing to do) and remember().

local fence, turn = ARGV[1], ARGV[2]
local admitted = true
local stored = redis.call('GET', KEYS[2])
if stored then
  local newest, last = string.match(stored, '^(%d+) (%d+)$')
  if not newest then return redis.error_reply('CORRUPT ' .. KEYS[2] .. ' is not a fence') end
  if tonumber(newest) > tonumber(fence) then return newest end
  admitted = newest ~= fence or tonumber(last) <= tonumber(turn)
end

-- Store the fence for `life` ms (0: no expiry). An existing expiry is never shortened.
local function remember(life)
  local left = stored and redis.call('PTTL', KEYS[2]) or 0
  local record = fence .. ' ' .. turn
  if life == 0 or left == -1 then
    redis.call('SET', KEYS[2], record)
  else
    redis.call('SET', KEYS[2], record, 'PX', string.format('%.0f', math.max(life, left)))
  end
end
