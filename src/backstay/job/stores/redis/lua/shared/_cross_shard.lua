-- Purpose: find jobs of this shard that wait for a chain of another shard but may not be registered there as its
-- dependents. Expects SHARD.

-- The process that creates such a job registers it in the other shard. If it has not done so after this time (µs), it
-- is presumed dead, and any worker registers the job.
local REGISTRATION_GRACE = 5000000

-- The hash `unregistered` has the field '<id of the waiting job> <id of the chain it waits for>' for each such job; its
-- value is the time (µs) when it was written. Return the fields that were written until `before`, about 100 at most.
local function list_unregistered(before)
  if redis.call('EXISTS', SHARD .. 'unregistered') == 0 then return {} end
  local found = {}
  local page = redis.call('HSCAN', SHARD .. 'unregistered', 0, 'COUNT', 100)[2]
  for i = 1, #page, 2 do
    if tonumber(page[i + 1]) <= before then found[#found + 1] = page[i] end
  end
  return found
end
