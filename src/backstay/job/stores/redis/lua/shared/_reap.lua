-- Purpose: reap expired leases and make due jobs pending. Expects SHARD (prefix of the shard's keys),
-- now (µs), _record.lua and _transitions.lua.

-- Retry, fail or cancel at most `limit` jobs whose lease expired.
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
      publish_later('owls', id)
      local run = job.ext.run ~= '' and get_run(job.ext.run)
      if run then add_event(run, 'l', id, job.attempt, worker, why) end
      if has(job.flags, CANCEL_REQUESTED) then
        end_job(job, 'x', failure, why)
      elseif job.attempt > job.retries then
        end_job(job, 'f', failure, why)
      else
        end_lease(job)
        job.tail, job.fence, job.worker = failure, 0, ''
        make_pending(job, why, worker)
      end
      if ended_jobs[1] or receivers[1] then resolve_all() end
    end
  end
end

-- Make scheduled jobs pending whose due time has come, at most `limit` jobs.
local function make_due(limit)
  local ids = redis.call('ZRANGEBYSCORE', SHARD .. 'due', '-inf', now, 'LIMIT', 0, limit)
  if #ids == 0 then return end
  fetch(ids)
  for _, id in ipairs(ids) do
    from_due[#from_due + 1] = id
    if jobs[id] and jobs[id].state == 's' then make_pending(jobs[id]) end
  end
end

-- Return the µs until the first scheduled job is due or the first lease expires; nil if there is neither.
local function find_next_due()
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
