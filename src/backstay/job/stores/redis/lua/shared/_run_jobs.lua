-- Purpose: read the jobs of a run. Expects SHARD, now, _record.lua and _transitions.lua.

-- Call `use(id, raw)` with the id and raw record of each job of a run, in the order of ids. Returns the number of jobs.
local function each_job(run, use)
  local ids = redis.call('ZRANGE', SHARD .. 'run-jobs:' .. run.id, 0, -1)
  for i, raw in ipairs(get_fields('job', ids)) do
    if raw then use(ids[i], raw) end
  end
  return #ids
end

-- Return the decoded jobs of a run that are in one of the states `states`, a string of state letters (_record.lua).
local function get_jobs_in(run, states)
  local found = {}
  each_job(run, function(id, raw)
    if string.find(states, string.sub(raw, 1, 1), 1, true) then
      jobs[id] = jobs[id] or decode_job(id, raw)
      found[#found + 1] = jobs[id]
    end
  end)
  return found
end
