-- Purpose: find jobs that are not registered with a blocker of another shard. Expects SHARD and now.

-- A process that has not registered its job after this time (µs) is presumed dead.
local GRACE = 5000000

-- Return jobs of this shard that a blocker of another shard may not know of, as '<job> <chain>'. Bounded: a part of many.
local function unregistered_since(before)
  if redis.call('EXISTS', SHARD .. 'unregistered') == 0 then return {} end
  local found = {}
  local page = redis.call('HSCAN', SHARD .. 'unregistered', 0, 'COUNT', 100)[2]
  for i = 1, #page, 2 do
    if tonumber(page[i + 1]) <= before then found[#found + 1] = page[i] end
  end
  return found
end
