-- Purpose: retry a scheduled, failed, cancelled or skipped job now, with all its attempts; dependents that were skipped
-- because of it wait for it again.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; 3 = job
-- Returns: {new state, or '': not stored; ready: type, number, …; dependents in other shards: job, chain, …}

-- include: _shard.lua
local id = ARGV[3]
-- include: _record.lua
-- include: _moves.lua
-- include: _retry.lua

local job = job_of(id)
if not job then return { '', {}, {} } end
local elsewhere, before = {}, job.state
local run = job.ext.run ~= '' and run_of(job.ext.run)
-- A run with a requested cancellation restarts no job.
if run and run.cancelling and not is_over(run) then return { job.state, {}, {} } end
if job.state == 's' then
  from_due[1] = id
  listen_again(job)
  start_over(job)
elseif job.state == 'f' or job.state == 'x' or job.state == 'k' then
  if run and is_held_back(job) then return { job.state, {}, {} } end
  push(from_end, job.state, id)
  listen_again(job)
  start_over(job)
  elsewhere = wait_again(job, {})
end
-- A job that is already live may have been restarted by an earlier, interrupted send of this call, so the other shards may
-- not know. A single shard has no dependents elsewhere.
if (before == 's' or before == 'b' or before == 'p' or before == 'r') and redis.call('HGET', KEYS[1], 'shards') ~= '1' then
  elsewhere = perhaps_untold(job)
end
flush(ARGV[2])
return { job.state, made_ready(), elsewhere }
