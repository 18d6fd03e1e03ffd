-- Purpose: end a job that does not run; ask for the end of one that does. Expects SHARD, now, _record.lua and _moves.lua.

-- Keys of concurrency that may have room: whoever was ended may have been the one to go next.
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
    -- What it says in the end, unless its worker says something else.
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

-- Behind all that are withdrawn: none of them comes back.
local function free_keys()
  for _, key in ipairs(freed) do unpark(key) end
  freed = {}
end
