-- Purpose: cancel jobs and runs; a running job only gets a cancellation request. Expects SHARD, now, _record.lua,
-- _transitions.lua and _run_jobs.lua.

-- Concurrency keys of cancelled pending jobs. Such a job may have been unparked, that is, moved from its parking place
-- into its lane as the next job of its key. Then another parked job of that key must be unparked instead.
local freed = {}

-- Remove a pending job from its lane or, if its concurrency key is full, from its parking place (_transitions.lua).
local function leave_lane(job)
  local key = job.ext.key
  push(from_lane, job.lane, job.id)
  if key == '' then return end
  leave_parking(job.id, key, job.lane)
  freed[#freed + 1] = key
end

-- Cancel a job. A running job only gets a cancellation request; a final job is left unchanged. `reason`: an encoded
-- failure. `why`: the message of that failure.
local function cancel_job(job, reason, why)
  if job.state == 'r' then
    -- Store the reason as the job's last failure (the tail of its record) now. When the worker then ends the job as
    -- cancelled, the reason stays, unless the worker reports a failure of its own.
    job.tail = reason
    if not has(job.flags, CANCEL_REQUESTED) then job.flags = job.flags + CANCEL_REQUESTED end
    mark_changed(job)
    publish_later('owls', job.id)
  elseif job.state == 'p' or job.state == 's' or job.state == 'b' then
    if job.state == 'p' then leave_lane(job) end
    if job.state == 's' then from_due[#from_due + 1] = job.id end
    end_job(job, 'x', reason, why)
  end
end

-- Unpark jobs of the keys in `freed`. Call it after the last `cancel_job`: an earlier call could unpark a job that is
-- about to be cancelled.
local function unpark_freed()
  for _, key in ipairs(freed) do unpark(key) end
  freed = {}
end

-- Cancel a run with its open jobs. A finished run, or one whose cancellation is already requested, is left unchanged.
local function cancel_run(run, reason)
  if is_finished(run) or run.cancelling then return end
  run.cancelling, run.reason = true, reason
  add_event(run, 'w', '', 0, '', reason)
  redis.call('ZREM', SHARD .. 'run-deadline', run.id)
  local failure = cmsgpack.pack({ kind = 'Cancelled', message = reason, at = now })
  for _, job in ipairs(get_jobs_in(run, 'sbpr')) do cancel_job(job, failure, reason) end
  unpark_freed()
  resolve_all()
end
