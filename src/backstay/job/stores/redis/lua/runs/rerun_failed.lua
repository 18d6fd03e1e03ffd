-- Purpose: restart the failed and cancelled jobs of a finished run; block again the dependents skipped because of them.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; 3 = run
-- Returns: {record or false, doc, dependents in other shards: job, chain, …}

-- include: _shard.lua
local id = ARGV[3]
-- include: _record.lua
-- include: _moves.lua
-- include: _retry.lua
-- include: _run_jobs.lua

local run, elsewhere = run_of(id), {}
if not run then return { false, '', {} } end
if is_over(run) then
  local again, starting = jobs_in(run, 'fx'), {}
  for _, job in ipairs(again) do
    starting[job.id] = true
    push(from_end, job.state, job.id)
  end
  -- `starting` must be complete before this: restarted jobs wait for one another.
  for _, job in ipairs(again) do
    for _, part in ipairs(wait_again(job, starting)) do elsewhere[#elsewhere + 1] = part end
  end
  for _, job in ipairs(again) do start_over(job) end
  flush(ARGV[2])
end
return { packed_run(run), redis.call('HGET', SHARD .. 'run-doc', id), elsewhere }
