-- Purpose: to undo an end: a job starts over, and those that were skipped because of it wait again. Expects SHARD, now,
-- _record.lua and _moves.lua.

local function start_over(job)
  job.attempt, job.due, job.finished, job.started, job.fence, job.worker, job.progress = 0, now, 0, 0, 0, '', 0
  if has(job.flags, CANCEL) then job.flags = job.flags - CANCEL end
  if ext_of(job, UNIQUE) ~= '' and job.ext[SCOPE] ~= 'w' and not holder(unique_key(job)) then
    redis.call('SET', unique_key(job), '0 ' .. job.id)
  end
  if ext_of(job, AFTER) == true and redis.call('EXISTS', SHARD .. 'waits:' .. job.id) == 1 then
    move(job, 'b')
  else
    enter(job)
  end
end

-- A job that was skipped because `chain` did not complete: what was the last reason makes it wait again. Answers whether
-- this was.
local function wait_for(job, chain)
  local upstream = SHARD .. 'upstream:' .. job.id
  if job.state ~= 'k' or redis.call('HGET', upstream, chain) ~= '-' then return false end
  redis.call('HDEL', upstream, chain)
  redis.call('SADD', SHARD .. 'waits:' .. job.id, chain)
  if redis.call('HINCRBY', upstream, '', -1) > 0 then return false end
  redis.call('HDEL', upstream, '')
  push(from_end, 'k', job.id)
  job.finished = 0
  move(job, 'b')
  return true
end

-- All that were skipped because of a job, and because of those. Answers who lives elsewhere: job, chain, …
local function wait_again(first)
  local woken, elsewhere, i = { first }, {}, 1
  while woken[i] do
    local job = woken[i]
    if has(job.flags, AWAITED) then
      local chain, here, home = chain_of(job), {}, string.match(job.id, '^[^-]*-')
      for _, id in ipairs(redis.call('SMEMBERS', SHARD .. 'awaiting:' .. chain)) do
        if string.sub(id, 1, #home) == home then
          here[#here + 1] = id
        else
          redis.call('HDEL', SHARD .. 'outbox', id .. ' ' .. chain)
          elsewhere[#elsewhere + 1] = id
          elsewhere[#elsewhere + 1] = chain
        end
      end
      fetch(here)
      for _, id in ipairs(here) do
        if jobs[id] and wait_for(jobs[id], chain) then woken[#woken + 1] = jobs[id] end
      end
    end
    i = i + 1
  end
  return elsewhere
end
