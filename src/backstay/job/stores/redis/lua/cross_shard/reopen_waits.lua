-- Purpose: block jobs again that were skipped because a chain of another shard failed. The caller retries that chain.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = prefix of the Pub/Sub channels' names
--       from 3 on, two values for each job: id of the skipped job, id of the chain that is retried
-- Returns: dependents in other shards that the caller must block again: dependent's id, id of the chain it waits for,
--            …

-- include: _shard.lua
-- include: _record.lua
-- include: _transitions.lua
-- include: _retry.lua

local remote, restarting = {}, {}
for i = 3, #ARGV, 2 do
  local job, found = get_job(ARGV[i]), {}
  if job and reblock(job, ARGV[i + 1], restarting) then
    found = reblock_dependents(job, restarting)
  elseif job and job.state == 'b' then
    -- The job is already blocked, perhaps by an equal call of another process. If that process died after its call, it
    -- has not blocked the job's dependents in other shards. So return these dependents to this caller, too.
    found = list_remote_dependents(job)
  end
  for _, part in ipairs(found) do remote[#remote + 1] = part end
end
flush(ARGV[2])
return remote
