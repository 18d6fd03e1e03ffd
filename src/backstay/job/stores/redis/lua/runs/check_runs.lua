-- Purpose: cancel runs past their deadline; correct the counts of open runs. Examines a bounded number of jobs and continues
-- where the last call stopped.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; 3 = number of runs at most
-- Returns: {outbox: job, chain, value, …; ids of the runs that were corrected}

-- include: _shard.lua
local limit = tonumber(ARGV[3])
-- include: _record.lua
-- include: _moves.lua
-- include: _run_jobs.lua
-- include: _cancel.lua
-- include: _cancel_run.lua

local MOST_JOBS = 20000

for _, id in ipairs(redis.call('ZRANGEBYSCORE', SHARD .. 'run-deadline', '-inf', now, 'LIMIT', 0, limit)) do
  local run = run_of(id)
  if run then
    cancel_run(run, 'the run did not end before its deadline')
  else
    redis.call('ZREM', SHARD .. 'run-deadline', id)
  end
end

-- Whether another job continues its chain; then that job is counted instead.
local function goes_on(raw)
  local kind, lane, ext = struct.unpack('>I2I2I2', raw, 40)
  local at = HEAD_SIZE + kind + lane
  return ext > 0 and string.byte(raw, at + 1) % 2 == RARE and read_ext(string.sub(raw, at + 1, at + ext)).next ~= ''
end

-- Correct the counts of a run. Returns the number of its jobs and whether a count was wrong.
local function set_right(run)
  local counts, hard = { s = 0, b = 0, p = 0, r = 0, c = 0, f = 0, x = 0, k = 0 }, 0
  local size = each_job(run, function(id, raw)
    local state = string.sub(raw, 1, 1)
    if state ~= 'c' or not goes_on(raw) then counts[state] = counts[state] + 1 end
    if state == 'f' and not read(id, raw).ext.soft then hard = hard + 1 end
  end)
  local wrong = hard ~= run.hard
  for state, number in pairs(counts) do wrong = wrong or number ~= run.counts[state] end
  if wrong or counts.s + counts.b + counts.p + counts.r == 0 then
    wrong = true
    run.counts, run.hard = counts, hard
    touch_run(run)
  end
  return size, wrong
end

local repaired, seen = {}, 0
for _, status in ipairs({ 'q', 'r' }) do
  local key, field = SHARD .. 'runs:' .. status .. ':', 'checked-' .. status
  local last = redis.call('HGET', KEYS[1], field)
  local ids = redis.call('ZRANGEBYLEX', key, last and '(' .. last or '-', '+', 'LIMIT', 0, limit)
  if last and #ids < limit then
    for _, id in ipairs(redis.call('ZRANGEBYLEX', key, '-', '[' .. last, 'LIMIT', 0, limit - #ids)) do ids[#ids + 1] = id end
  end
  for _, id in ipairs(ids) do
    if seen >= MOST_JOBS then break end
    local run = run_of(id)
    if run and run.changed then
      seen = seen + 1 -- this script's changes to its jobs are not written yet
    elseif run then
      local size, wrong = set_right(run)
      seen = seen + size
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
