-- Purpose: cancel runs past their deadline, and correct the job counts of unfinished runs. A call stops after
-- examining about MAX_JOBS jobs; the next call continues with the next run.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = prefix of the Pub/Sub channels' names
--       3 = largest number of runs to cancel, and of runs of each unfinished status (queued, running) to examine
-- Returns: an array of two lists:
--          1. outbox entries written by this call: id of a waiting job of another shard, the ended chain's id,
--            '+<result>' (success) or '-' (no success); …
--          2. ids of the runs whose counts were corrected, or that should have finished before

-- include: _shard.lua
local limit = tonumber(ARGV[3])
-- include: _record.lua
-- include: _transitions.lua
-- include: _run_jobs.lua
-- include: _cancel.lua

-- A call stops once it has examined this many jobs.
local MAX_JOBS = 20000

for _, id in ipairs(redis.call('ZRANGEBYSCORE', SHARD .. 'run-deadline', '-inf', now, 'LIMIT', 0, limit)) do
  local run = get_run(id)
  if run then
    cancel_run(run, 'the run did not end before its deadline')
  else
    redis.call('ZREM', SHARD .. 'run-deadline', id)
  end
end

-- Whether another job continues this job's chain; `raw`: the job's record. The run's counts contain only the last job
-- of a chain, so a continued job is not counted.
local function is_continued(raw)
  local kind, lane, ext = struct.unpack('>I2I2I2', raw, 40)
  local at = HEAD_SIZE + kind + lane
  return ext > 0 and string.byte(raw, at + 1) % 2 == RARE and decode_ext(string.sub(raw, at + 1, at + ext)).next ~= ''
end

-- Correct the stored counts of a run: its jobs by state, and its failed jobs that are not soft. Returns the number of
-- its jobs, and whether a count was wrong or the run should have finished, because no job is open.
local function correct_counts(run)
  local counts, hard_failures = { s = 0, b = 0, p = 0, r = 0, c = 0, f = 0, x = 0, k = 0 }, 0
  local size = each_job(run, function(id, raw)
    local state = string.sub(raw, 1, 1)
    if state ~= 'c' or not is_continued(raw) then counts[state] = counts[state] + 1 end
    if state == 'f' and not decode_job(id, raw).ext.soft then hard_failures = hard_failures + 1 end
  end)
  local wrong = hard_failures ~= run.hard_failures
  for state, number in pairs(counts) do wrong = wrong or number ~= run.counts[state] end
  if wrong or counts.s + counts.b + counts.p + counts.r == 0 then
    wrong = true
    run.counts, run.hard_failures = counts, hard_failures
    mark_run_changed(run)
  end
  return size, wrong
end

local repaired, examined = {}, 0
for _, status in ipairs({ 'q', 'r' }) do
  local key, field = SHARD .. 'runs:' .. status .. ':', 'checked-' .. status
  local last = redis.call('HGET', KEYS[1], field)
  local ids = redis.call('ZRANGEBYLEX', key, last and '(' .. last or '-', '+', 'LIMIT', 0, limit)
  if last and #ids < limit then
    -- The list ends here: continue with its first runs, up to the run at which the previous call stopped.
    local wrapped = redis.call('ZRANGEBYLEX', key, '-', '[' .. last, 'LIMIT', 0, limit - #ids)
    for _, id in ipairs(wrapped) do ids[#ids + 1] = id end
  end
  for _, id in ipairs(ids) do
    if examined >= MAX_JOBS then break end
    local run = get_run(id)
    if run and run.changed then
      examined = examined + 1 -- cancelled above: its counts include changes of jobs that are not written yet
    elseif run then
      local size, wrong = correct_counts(run)
      examined = examined + size
      if wrong then repaired[#repaired + 1] = id end
    else
      redis.call('ZREM', key, id)
    end
    last = id
  end
  if last then redis.call('HSET', KEYS[1], field, last) end
end
flush(ARGV[2])
return { outbox, repaired }
