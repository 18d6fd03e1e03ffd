-- Purpose: delete jobs in a final state, oldest first. Jobs of a run are left: they are deleted with the run.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = letter of the final state
--       3 = a queue's name, '' for any
--       4 = largest number of jobs to examine
--       5 = number of jobs to skip at the start: jobs of other queues, which earlier calls examined
-- Returns: {number of deleted jobs; number of examined jobs that belong to other queues; 1 if there may be further
--            jobs, else 0}

-- include: _shard.lua
local state, queue, limit, skip = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
-- include: _record.lua
-- include: _transitions.lua
-- include: _remove.lua

local ids = redis.call('ZRANGEBYSCORE', SHARD .. 'end:' .. state, '-inf', '(+inf', 'LIMIT', skip, limit)
local mine = ids
if queue ~= '' then
  mine = {}
  fetch(ids)
  for _, id in ipairs(ids) do
    if jobs[id] and queue_of(jobs[id].lane) == queue then mine[#mine + 1] = id end
  end
end
remove_jobs(mine, state)
flush('')
return { #mine, #ids - #mine, #ids == limit and 1 or 0 }
