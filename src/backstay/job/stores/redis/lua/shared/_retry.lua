-- Purpose: restart ended jobs, and block again the dependents that were skipped because of them. Expects SHARD, now,
-- _record.lua and _moves.lua.

-- Whether a job has an open blocker.
local function is_waiting(job)
  if job.ext.keyed then return redis.call('EXISTS', SHARD .. 'waits:' .. job.id) == 1 end
  return string.find(job.ext.letters, 'w', 1, true)
end

-- Restore all attempts of a job, as if it had never started.
local function forget_attempts(job)
  job.attempt, job.finished, job.started, job.fence, job.worker, job.progress = 0, 0, 0, 0, '', 0
  for _, flag in ipairs({ CANCEL, BLAMED }) do
    if has(job.flags, flag) then job.flags = job.flags - flag end
  end
  if job.ext.unique ~= '' and job.ext.scope ~= 'w' and not holder(unique_key(job)) then
    redis.call('SET', unique_key(job), '0 ' .. job.id)
  end
end

local function start_over(job)
  forget_attempts(job)
  job.due = now
  if is_waiting(job) then
    move(job, 'b')
  else
    enter(job)
  end
end

-- Mark an ended blocker of a job as open again. Returns whether it had ended without success, and whether no other blocker
-- without success is left.
local function unhear(job, chain)
  if not job.ext.keyed then
    local place = place_of(job, chain)
    local letter = place and string.sub(job.ext.letters, place, place)
    if not place or letter == '+' or letter == 'w' then return false end
    set_letter(job, place, 'w')
    return true, not string.find(job.ext.letters, '[-xk]')
  end
  local upstream = SHARD .. 'upstream:' .. job.id
  local value = redis.call('HGET', upstream, chain)
  local letter = value and string.sub(value, 1, 1)
  if not letter or letter == '+' or letter == '=' then return false end
  redis.call('HDEL', upstream, chain)
  redis.call('SADD', SHARD .. 'waits:' .. job.id, chain)
  if letter == '-' and redis.call('HINCRBY', upstream, '!', -1) <= 0 then redis.call('HDEL', upstream, '!') end
  if not is_bad(letter) then return true, not redis.call('HGET', upstream, '') end
  if redis.call('HINCRBY', upstream, '', -1) > 0 then return true, false end
  redis.call('HDEL', upstream, '')
  return true, true
end

-- Whether a chain that ended is live again.
local function is_open(chain)
  local last = job_of(redis.call('HGET', SHARD .. 'chain', chain) or chain)
  local state = last and last.state
  return state == 's' or state == 'b' or state == 'p' or state == 'r'
end

-- Return the blockers of a job that have ended.
local function heard(job)
  return job.ext.keyed and redis.call('HKEYS', SHARD .. 'upstream:' .. job.id) or job.ext.after
end

-- Wait again for those ended blockers of a job that are live again.
local function listen_again(job)
  for _, name in ipairs(heard(job)) do
    if is_open(name) then unhear(job, name) end
  end
end

-- Whether a restarted job would be skipped again at once: a blocker ended without success (any_failure: none failed) and is
-- not live again. A failed job has run before, so it may run again.
local function is_held_back(job)
  local when, keyed = job.ext.when, job.ext.keyed
  if job.state == 'f' or when == 'd' or (when == 'f' and is_waiting(job)) then return false end
  local failed = false
  for i, name in ipairs(heard(job)) do
    local letter = not keyed and string.sub(job.ext.letters, i, i)
      or name ~= '' and name ~= '!' and string.sub(redis.call('HGET', SHARD .. 'upstream:' .. job.id, name), 1, 1)
    local bad = letter and is_bad(letter)
    if (bad or letter == '~') and is_open(name) then
      if when == 'f' then return false end
    elseif bad then
      if when == 's' then return true end
      failed = failed or letter == '-'
    end
  end
  return when == 'f' and not failed
end

-- Wait again for `chain`. A skipped job is blocked again when no other reason to skip it is left; returns whether it was. A
-- job that failed or was cancelled itself keeps its state, but sees the new outcome if it is retried later. `starting`: the
-- jobs that restart in this call; they wait for one another too.
local function wait_for(job, chain, starting)
  local skipped = job.state == 'k'
  if not skipped and job.state ~= 'f' and job.state ~= 'x' and not starting[job.id] then return false end
  local heard, all = unhear(job, chain)
  if not skipped or not heard or not (all or job.ext.when ~= 's') then return false end
  push(from_end, 'k', job.id)
  forget_attempts(job)
  move(job, 'b')
  starting[job.id] = true
  return true
end

-- Block again all jobs that were skipped because of a job, and their dependents in turn. Returns the dependents of other
-- shards: job, chain, …
local function wait_again(first, starting)
  write_awaiting()
  local woken, answer, i = { first }, {}, 1
  while woken[i] do
    local job = woken[i]
    local chain, here, elsewhere = chain_of(job), dependents(job)
    for _, id in ipairs(elsewhere) do
      redis.call('HDEL', SHARD .. 'outbox', id .. ' ' .. chain)
      answer[#answer + 1] = id
      answer[#answer + 1] = chain
    end
    fetch(here)
    for _, id in ipairs(here) do
      if jobs[id] and wait_for(jobs[id], chain, starting) then woken[#woken + 1] = jobs[id] end
    end
    i = i + 1
  end
  return answer
end

-- Return the dependents of other shards of a live job and of the blocked jobs behind it: job, chain, … The process that
-- restarted it may have died before it informed those shards.
local function perhaps_untold(first)
  local answer, todo, seen, i = {}, { first }, { [first.id] = true }, 1
  while todo[i] do
    local job = todo[i]
    local chain, here, elsewhere = chain_of(job), dependents(job)
    for _, id in ipairs(elsewhere) do
      answer[#answer + 1] = id
      answer[#answer + 1] = chain
    end
    fetch(here)
    for _, id in ipairs(here) do
      if jobs[id] and jobs[id].state == 'b' and not seen[id] then
        seen[id] = true
        todo[#todo + 1] = jobs[id]
      end
    end
    i = i + 1
  end
  return answer
end
