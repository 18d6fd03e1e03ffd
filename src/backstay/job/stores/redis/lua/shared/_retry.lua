-- Purpose: restart final jobs, and block again the dependents that were skipped because of these jobs. Expects SHARD
-- (prefix of the shard's keys), now (µs), _record.lua and _transitions.lua.

-- Whether a job has a blocker that has not ended.
local function has_open_blocker(job)
  if job.ext.separate_waits then return redis.call('EXISTS', SHARD .. 'waits:' .. job.id) == 1 end
  return string.find(job.ext.outcomes, 'w', 1, true)
end

-- Reset a job as if it had never started: its attempts count from zero. The job takes its unique key again if no other
-- job holds the key.
local function reset_attempts(job)
  job.attempt, job.finished, job.started, job.fence, job.worker, job.progress = 0, 0, 0, 0, '', 0
  for _, flag in ipairs({ CANCEL_REQUESTED, UPSTREAM_FAILED }) do
    if has(job.flags, flag) then job.flags = job.flags - flag end
  end
  if job.ext.unique ~= '' and job.ext.scope ~= 'w' and not find_holder(unique_key(job)) then
    redis.call('SET', unique_key(job), '0 ' .. job.id)
  end
end

-- Make a job pending now, or blocked if it has an open blocker. Its attempts count from zero again.
local function restart(job)
  reset_attempts(job)
  job.due = now
  if has_open_blocker(job) then
    change_state(job, 'b')
  else
    make_pending(job)
  end
end

-- Make a job wait again for its blocker `chain`. Does nothing if that blocker completed or has not ended. Returns
-- whether the job waits again. If it does, a second value says whether no other blocker of the job failed, was
-- cancelled or was skipped (`is_bad`).
local function reopen_blocker(job, chain)
  if not job.ext.separate_waits then
    local position = find_blocker(job, chain)
    local outcome = position and string.sub(job.ext.outcomes, position, position)
    if not position or outcome == '+' or outcome == 'w' then return false end
    set_outcome(job, position, 'w')
    return true, not string.find(job.ext.outcomes, '[-xk]')
  end
  local upstream = SHARD .. 'upstream:' .. job.id
  local value = redis.call('HGET', upstream, chain)
  local outcome = value and string.sub(value, 1, 1)
  if not outcome or outcome == '+' or outcome == '=' then return false end
  redis.call('HDEL', upstream, chain)
  redis.call('SADD', SHARD .. 'waits:' .. job.id, chain)
  if outcome == '-' and redis.call('HINCRBY', upstream, '!', -1) <= 0 then redis.call('HDEL', upstream, '!') end
  if not is_bad(outcome) then return true, not redis.call('HGET', upstream, '') end
  if redis.call('HINCRBY', upstream, '', -1) > 0 then return true, false end
  redis.call('HDEL', upstream, '')
  return true, true
end

-- Whether a chain has not ended: its last job is stored and is not final.
local function is_live(chain)
  local last = get_job(redis.call('HGET', SHARD .. 'chain', chain) or chain)
  local state = last and last.state
  return state == 's' or state == 'b' or state == 'p' or state == 'r'
end

-- Return the chain ids of a job's blockers, from the job's record. If the blockers do not fit into the record
-- (`separate_waits`), return the fields of the hash `upstream:<job>` instead: the chain ids of the ended blockers, and
-- the fields '' and '!', which count bad outcomes and failures.
local function list_blockers(job)
  return job.ext.separate_waits and redis.call('HKEYS', SHARD .. 'upstream:' .. job.id) or job.ext.after
end

-- Make a job wait again for those of its ended blockers that have been restarted (`is_live`).
local function reopen_blockers(job)
  for _, name in ipairs(list_blockers(job)) do
    if is_live(name) then reopen_blocker(job, name) end
  end
end

-- Whether a job would be skipped again at once if it were restarted:
--   * with all_success: if a blocker ended without success and is not being retried
--   * with any_failure: if no blocker failed, is open or is being retried
--   * never for a failed job: it has run before, so it may run again
local function would_skip_again(job)
  local when, separate_waits = job.ext.when, job.ext.separate_waits
  if job.state == 'f' or when == 'd' or (when == 'f' and has_open_blocker(job)) then return false end
  local failed = false
  for i, name in ipairs(list_blockers(job)) do
    local outcome = not separate_waits and string.sub(job.ext.outcomes, i, i)
      or name ~= '' and name ~= '!' and string.sub(redis.call('HGET', SHARD .. 'upstream:' .. job.id, name), 1, 1)
    local bad = outcome and is_bad(outcome)
    if (bad or outcome == '~') and is_live(name) then
      if when == 'f' then return false end
    elseif bad then
      if when == 's' then return true end
      failed = failed or outcome == '-'
    end
  end
  return when == 'f' and not failed
end

-- Make a job wait again for its blocker `chain`, which restarts. A skipped job becomes blocked again, unless another
-- blocker keeps it skipped. A job that failed or was cancelled keeps its state, but sees the new outcome if it is
-- retried later. Returns whether the job became blocked.
-- restarting: the set of the ids of the jobs that this script restarts. One of them may be a blocker of another. So a
-- job of this set is made to wait again like a failed one, even if it is no longer in a final state.
local function reblock(job, chain, restarting)
  local skipped = job.state == 'k'
  if not skipped and job.state ~= 'f' and job.state ~= 'x' and not restarting[job.id] then return false end
  local was_reopened, none_bad = reopen_blocker(job, chain)
  if not skipped or not was_reopened or not (none_bad or job.ext.when ~= 's') then return false end
  push(from_end, 'k', job.id)
  reset_attempts(job)
  change_state(job, 'b')
  restarting[job.id] = true
  return true
end

-- Block again all jobs of this shard that were skipped because of the restarted job `first`, and in turn the jobs that
-- were skipped because of those. `restarting`: the set of the ids of the jobs that this script restarts. Returns the
-- dependents in other shards as a flat list: job id, chain id that the job waits for, …
local function reblock_dependents(first, restarting)
  write_awaiting()
  local reblocked, remote, i = { first }, {}, 1
  while reblocked[i] do
    local job = reblocked[i]
    local chain, local_ids, remote_ids = chain_of(job), get_dependents(job)
    for _, id in ipairs(remote_ids) do
      redis.call('HDEL', SHARD .. 'outbox', id .. ' ' .. chain)
      remote[#remote + 1] = id
      remote[#remote + 1] = chain
    end
    fetch(local_ids)
    for _, id in ipairs(local_ids) do
      if jobs[id] and reblock(jobs[id], chain, restarting) then reblocked[#reblocked + 1] = jobs[id] end
    end
    i = i + 1
  end
  return remote
end

-- Return the jobs of other shards that depend on the job `first`, directly or through blocked jobs of this shard.
-- `first` was restarted earlier and is not final. The process that restarted it may have died before it notified the other
-- shards, so these dependents may still be skipped. The list is flat: job id, chain id that the job waits for, …
local function list_remote_dependents(first)
  local remote, todo, seen, i = {}, { first }, { [first.id] = true }, 1
  while todo[i] do
    local job = todo[i]
    local chain, local_ids, remote_ids = chain_of(job), get_dependents(job)
    for _, id in ipairs(remote_ids) do
      remote[#remote + 1] = id
      remote[#remote + 1] = chain
    end
    fetch(local_ids)
    for _, id in ipairs(local_ids) do
      if jobs[id] and jobs[id].state == 'b' and not seen[id] then
        seen[id] = true
        todo[#todo + 1] = jobs[id]
      end
    end
    i = i + 1
  end
  return remote
end
