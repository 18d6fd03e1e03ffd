-- Purpose: what every guarded write does first: compare fences, and remember this one beside the value.
-- The fence's record is '<fence> <turn>'. Turns grow with each write of one process, so that a late copy of an earlier
-- write of the same holder is told from the next. Leaves `admitted` (false: a late copy; nothing to do) and remember().

local fence, turn = ARGV[1], ARGV[2]
local admitted = true
local stored = redis.call('GET', KEYS[2])
if stored then
  local newest, last = string.match(stored, '^(%d+) (%d+)$')
  if not newest then return redis.error_reply('CORRUPT ' .. KEYS[2] .. ' is not a fence') end
  if tonumber(newest) > tonumber(fence) then return newest end
  admitted = newest ~= fence or tonumber(last) <= tonumber(turn)
end

-- Keep the fence for `life` ms (0: for good). Its life never gets shorter.
local function remember(life)
  local left = stored and redis.call('PTTL', KEYS[2]) or 0
  local record = fence .. ' ' .. turn
  if life == 0 or left == -1 then
    redis.call('SET', KEYS[2], record)
  else
    redis.call('SET', KEYS[2], record, 'PX', string.format('%.0f', math.max(life, left)))
  end
end
