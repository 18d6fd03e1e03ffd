-- Purpose: reap expired leases and make scheduled jobs due. Expects SHARD, now, _record.lua and _moves.lua.

-- Retry, fail or cancel jobs whose lease expired.
local function reap(limit)
  local ids = redis.call('ZRANGEBYSCORE', SHARD .. 'lease', '-inf', now, 'LIMIT', 0, limit)
  if #ids == 0 then return end
  fetch(ids)
  for _, id in ipairs(ids) do
    local job = jobs[id]
    if not job or job.state ~= 'r' then
      from_lease[#from_lease + 1] = id -- a stale entry: the job is deleted or in another state
    else
      local why, worker = 'worker ' .. job.worker .. ' did not renew its lease', job.worker
      local failure = cmsgpack.pack({ kind = 'LeaseExpired', attempt = job.attempt, at = now, message = why })
      say('owls', id)
      local run = job.ext.run ~= '' and run_of(job.ext.run)
      if run then tell(run, 'l', id, job.attempt, worker, why) end
      if has(job.flags, CANCEL) then
        final(job, 'x', failure, why)
      elseif job.attempt > job.retries then
        final(job, 'f', failure, why)
      else
        leave(job)
        job.tail, job.fence, job.worker = failure, 0, ''
        enter(job, why, worker)
      end
      if ended[1] or arriving[1] then settle() end
    end
  end
end

-- Make due jobs pending.
local function make_due(limit)
  local ids = redis.call('ZRANGEBYSCORE', SHARD .. 'due', '-inf', now, 'LIMIT', 0, limit)
  if #ids == 0 then return end
  fetch(ids)
  for _, id in ipairs(ids) do
    from_due[#from_due + 1] = id
    if jobs[id] and jobs[id].state == 's' then enter(jobs[id]) end
  end
end

-- Return the µs until a job becomes due or a lease expires; nil: neither is scheduled.
local function next_in()
  local soonest
  for _, index in ipairs({ 'due', 'lease' }) do
    local first = redis.call('ZRANGE', SHARD .. index, 0, 0, 'WITHSCORES')
    if first[2] then
      local at = tonumber(first[2])
      if not soonest or at < soonest then soonest = at end
    end
  end
  return soonest and math.max(0, soonest - now)
end
