-- Purpose: end a job that does not run; ask for the end of one that does.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; 3 = job; 4 = the reason, as a failure
-- Returns: {its state then, or ''; ready: type, number, …; the outbox: job, chain, value, …}

-- include: _shard.lua
local id, reason = ARGV[3], ARGV[4]
-- include: _record.lua
-- include: _moves.lua

local job = job_of(id)
if not job then return { '', {}, {} } end
if job.state == 'r' then
  if not has(job.flags, CANCEL) then
    job.flags = job.flags + CANCEL
    job.tail = reason -- what its worker will say, unless it has something better
    touch(job)
    say('owls', id)
  end
elseif job.state == 'p' then
  local key = ext_of(job, KEY)
  if redis.call('ZREM', SHARD .. 'lane:' .. job.lane, id) == 0 and key ~= '' then
    redis.call('ZREM', parking(key, job.lane), id)
    redis.call('ZREM', SHARD .. 'parked-since:' .. queue_of(job.lane), id)
  end
  if redis.call('EXISTS', SHARD .. 'lane:' .. job.lane) == 0 then
    redis.call('SREM', SHARD .. 'lanes:' .. queue_of(job.lane), job.lane)
  end
  -- It may have been the one that was to go next.
  if key ~= '' then unpark(key) end
  final(job, 'x', reason)
elseif job.state == 's' or job.state == 'b' then
  if job.state == 's' then from_due[1] = id end
  final(job, 'x', reason)
end
settle()
flush(ARGV[2])
return { job.state, made_ready(), outbox }
