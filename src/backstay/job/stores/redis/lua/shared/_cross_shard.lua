-- Purpose: what ties a shard to the others. Expects SHARD and now.

-- An enqueuer that has not registered its job with a blocker elsewhere by then has died.
local GRACE = 5000000

-- Jobs here that a blocker elsewhere may not know of, as '<job> <chain>': some of them, if there are many.
local function unregistered_since(before)
  if redis.call('EXISTS', SHARD .. 'unregistered') == 0 then return {} end
  local found = {}
  local page = redis.call('HSCAN', SHARD .. 'unregistered', 0, 'COUNT', 100)[2]
  for i = 1, #page, 2 do
    if tonumber(page[i + 1]) <= before then found[#found + 1] = page[i] end
  end
  return found
end
