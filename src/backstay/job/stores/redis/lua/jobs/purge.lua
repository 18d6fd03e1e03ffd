-- Purpose: delete final jobs of a state, oldest first. Jobs of a run are skipped: they are deleted with the run.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = state; 3 = queue ('': any); 4 = number at most; 5 = number of entries to skip first
-- Returns: {number of deleted jobs, number of examined jobs of other queues, 1 if there may be more}

-- include: _shard.lua
local state, queue, limit, skip = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
-- include: _record.lua
-- include: _moves.lua
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
remove(mine, state)
flush('')
return { #mine, #ids - #mine, #ids == limit and 1 or 0 }
