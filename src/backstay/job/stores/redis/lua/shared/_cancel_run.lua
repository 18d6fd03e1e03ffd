-- Purpose: cancel a run: request the cancellation of its running jobs, cancel all others. Expects SHARD, now, _record.lua,
-- _moves.lua, _run_jobs.lua and _cancel.lua.

local function cancel_run(run, reason)
  if is_over(run) or run.cancelling then return end
  run.cancelling, run.reason = true, reason
  tell(run, 'w', '', 0, '', reason)
  redis.call('ZREM', SHARD .. 'run-deadline', run.id)
  local failure = cmsgpack.pack({ kind = 'Cancelled', message = reason, at = now })
  for _, job in ipairs(jobs_in(run, 'sbpr')) do withdraw(job, failure, reason) end
  free_keys()
  settle()
end
