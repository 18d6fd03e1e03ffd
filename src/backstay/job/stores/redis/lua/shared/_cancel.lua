-- Purpose: cancel a job, or request the cancellation of a running one. Expects SHARD, now, _record.lua and _moves.lua.

-- Concurrency keys to unpark: the cancelled job may have been the one that `unpark` returned to its lane.
local freed = {}

local function take_out(job)
  local key = job.ext.key
  push(from_lane, job.lane, job.id)
  if key == '' then return end
  leave_parking(job.id, key, job.lane)
  freed[#freed + 1] = key
end

local function withdraw(job, reason, why)
  if job.state == 'r' then
    -- The failure that is stored at its end, unless the worker reports another.
    job.tail = reason
    if not has(job.flags, CANCEL) then job.flags = job.flags + CANCEL end
    touch(job)
    say('owls', job.id)
  elseif job.state == 'p' or job.state == 's' or job.state == 'b' then
    if job.state == 'p' then take_out(job) end
    if job.state == 's' then from_due[#from_due + 1] = job.id end
    final(job, 'x', reason, why)
  end
end

-- Call it after the last `withdraw`, so that no withdrawn job is returned to a lane.
local function free_keys()
  for _, key in ipairs(freed) do unpark(key) end
  freed = {}
end
