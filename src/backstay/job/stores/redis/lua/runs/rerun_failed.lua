-- Purpose: restart the failed and cancelled jobs of a finished run, and block again the dependents that were skipped
-- because of these jobs.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = prefix of the Pub/Sub channels' names
--       3 = the run's id
-- Returns: an array of three:
--          1. the run's record, or false if the run is not stored
--          2. the run's document (inputs, job names, trigger)
--          3. dependents in other shards that the caller must block again: dependent's id, id of the chain it waits
--            for, …

-- include: _shard.lua
local id = ARGV[3]
-- include: _record.lua
-- include: _transitions.lua
-- include: _retry.lua
-- include: _run_jobs.lua

local run, remote = get_run(id), {}
if not run then return { false, '', {} } end
if is_finished(run) then
  local failed, restarting = get_jobs_in(run, 'fx'), {}
  for _, job in ipairs(failed) do
    restarting[job.id] = true
    push(from_end, job.state, job.id)
  end
  -- One job that is restarted may depend on another one. `reblock_dependents` must then know that the dependent is
  -- restarted, too. So `restarting` contains all of these jobs before the first call.
  for _, job in ipairs(failed) do
    for _, part in ipairs(reblock_dependents(job, restarting)) do remote[#remote + 1] = part end
  end
  for _, job in ipairs(failed) do restart(job) end
  flush(ARGV[2])
end
return { encode_run(run), redis.call('HGET', SHARD .. 'run-doc', id), remote }
