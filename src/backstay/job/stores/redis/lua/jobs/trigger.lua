-- Purpose: retry a scheduled, failed, cancelled or skipped job now, with its attempts counted from zero. Dependents
-- that were skipped because of this job are blocked again.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = prefix of the Pub/Sub channels' names
--       3 = the job's id
-- Returns: an array of three:
--          1. letter of the job's new state, or '' if the job is not stored
--          2. jobs that became pending, by type: type, count, type, count, …
--          3. dependents in other shards that the caller must block again: dependent's id, id of the chain it waits
--            for, …

-- include: _shard.lua
local id = ARGV[3]
-- include: _record.lua
-- include: _transitions.lua
-- include: _retry.lua

local job = get_job(id)
if not job then return { '', {}, {} } end
local remote, before = {}, job.state
local run = job.ext.run ~= '' and get_run(job.ext.run)
-- A run that is being cancelled restarts no job.
if run and run.cancelling and not is_finished(run) then return { job.state, {}, {} } end
if job.state == 's' then
  from_due[1] = id
  reopen_blockers(job)
  restart(job)
elseif job.state == 'f' or job.state == 'x' or job.state == 'k' then
  if run and would_skip_again(job) then return { job.state, {}, {} } end
  push(from_end, job.state, id)
  reopen_blockers(job)
  restart(job)
  remote = reblock_dependents(job, {})
end
-- If the job was not in a final state, an earlier caller of this script may have restarted it and then died, before it
-- blocked the dependents in other shards again. So return these dependents to this caller, which does it. With one
-- shard, there are none.
local was_live = before == 's' or before == 'b' or before == 'p' or before == 'r'
if was_live and redis.call('HGET', KEYS[1], 'shards') ~= '1' then
  remote = list_remote_dependents(job)
end
flush(ARGV[2])
return { job.state, list_ready(), remote }
