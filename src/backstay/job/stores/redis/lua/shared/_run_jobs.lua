-- Purpose: iterate over the jobs of a run. Expects SHARD, now, _record.lua and _moves.lua.

-- Call `use(id, raw)` for each job of a run in the order of ids, with its stored record. Returns the number of jobs.
local function each_job(run, use)
  local ids = redis.call('ZRANGE', SHARD .. 'run-jobs:' .. run.id, 0, -1)
  for i, raw in ipairs(fields_of('job', ids)) do
    if raw then use(ids[i], raw) end
  end
  return #ids
end

-- Return the decoded jobs whose state is one of these letters.
local function jobs_in(run, states)
  local found = {}
  each_job(run, function(id, raw)
    if string.find(states, string.sub(raw, 1, 1), 1, true) then
      jobs[id] = jobs[id] or read(id, raw)
      found[#found + 1] = jobs[id]
    end
  end)
  return found
end
