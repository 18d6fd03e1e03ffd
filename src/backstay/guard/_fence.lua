-- Purpose: the common start of every guarded write: compare the caller's fence with the fence of the last write. If the
--   stored fence is newer, the including script ends here and returns the newer fence.
-- KEYS[2] holds '<fence> <write number>' of the last write. A process numbers its writes. A request with the stored
--   fence but a lower number is a duplicate of an earlier write that was delayed on the network.
-- Defines `admitted` (false: this request is such a duplicate and must write nothing) and store_fence().

local fence, write_number = ARGV[1], ARGV[2]
local admitted = true
local stored = redis.call('GET', KEYS[2])
if stored then
  local newest, last = string.match(stored, '^(%d+) (%d+)$')
  if not newest then return redis.error_reply('CORRUPT ' .. KEYS[2] .. ' is not a fence') end
  if tonumber(newest) > tonumber(fence) then return newest end
  admitted = newest ~= fence or tonumber(last) <= tonumber(write_number)
end

-- Store the caller's fence and write number for `life` ms (0: without expiry). If a fence is already stored and expires
-- later, the new one gets that later expiry.
local function store_fence(life)
  local left = stored and redis.call('PTTL', KEYS[2]) or 0
  local record = fence .. ' ' .. write_number
  if life == 0 or left == -1 then
    redis.call('SET', KEYS[2], record)
  else
    redis.call('SET', KEYS[2], record, 'PX', string.format('%.0f', math.max(life, left)))
  end
end
