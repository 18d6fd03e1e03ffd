-- Purpose: update the records of runs: job counts by state, status and events. `change_state` calls `count_transition`
-- for each job of a run; `flush_runs` writes every changed run once. runs.py has the same layout. Expects SHARD, now
-- and _record.lua.
--
-- A run's record holds:
--   * its status: 'q' queued, 'r' running, 's' success, 'f' failure, 'x' cancelled;
--   * whether its cancellation is requested;
--   * times in µs: created, started, finished, deadline; durations in µs: timeout, keep (retention);
--   * the number of its last event; the version of its workflow;
--   * hard_failures: the number of failed jobs whose failure is not tolerated (soft);
--   * the number of its jobs in each state, where a chain counts as one job in the state of its last job;
--   * the name of its workflow; the reason of its cancellation.
--
-- An event holds: kind, time, attempt, worker, job id, reason. The kind of a job's event is the letter of the state
-- that the job entered (_record.lua), or 'l' if its lease expired. The kinds of the run's own events are 'n' (created),
-- 'e' (finished), 'o' (reopened) and 'w' (cancellation requested).

local RUN_HEAD, RUN_SIZE = '>c1BI8I8I8I8I8I8I4I4I4I4I4I4I4I4I4I4I4I2', 96

-- runs: decoded runs by id; false for a run that is not stored. changed_runs: the runs that `flush_runs` must write.
local runs, changed_runs = {}, {}

local function decode_run(id, raw)
  local status, cancelling, created, started, finished, deadline, timeout, keep, events, version, hard_failures,
    s, b, p, r, c, f, x, k, size = struct.unpack(RUN_HEAD, raw)
  return {
    id = id, status = status, old_status = status, cancelling = cancelling == 1, created = created, started = started,
    finished = finished, deadline = deadline, timeout = timeout, keep = keep, events = events, version = version,
    hard_failures = hard_failures, counts = { s = s, b = b, p = p, r = r, c = c, f = f, x = x, k = k }, new_events = {},
    workflow = string.sub(raw, RUN_SIZE + 1, RUN_SIZE + size), reason = string.sub(raw, RUN_SIZE + size + 1),
  }
end

local function encode_run(run)
  local n = run.counts
  return struct.pack(RUN_HEAD, run.status, run.cancelling and 1 or 0, run.created, run.started, run.finished,
    run.deadline, run.timeout, run.keep, run.events, run.version, run.hard_failures,
    n.s, n.b, n.p, n.r, n.c, n.f, n.x, n.k, #run.workflow) .. run.workflow .. run.reason
end

-- Return a decoded run; false if it is not stored.
local function get_run(id)
  if runs[id] == nil then
    local raw = redis.call('HGET', SHARD .. 'run', id)
    runs[id] = raw and decode_run(id, raw)
  end
  return runs[id]
end

local function is_finished(run)
  return run.status ~= 'q' and run.status ~= 'r'
end

local function mark_run_changed(run)
  if not run.changed then
    run.changed = true
    changed_runs[#changed_runs + 1] = run
  end
end

local add_event, encode_event_head, count_uniform_transition
do
  -- `head`: the last result of `encode_event_head`. The other three: the arguments of that call. Many events of a
  -- script are equal up to the job id, so the result is reused.
  local head, head_kind, head_attempt, head_worker
  local sizes = {}

  -- Encode the head of an event, which is all of its fields before the job id and the reason: kind, time, attempt and
  -- worker.
  encode_event_head = function(kind, attempt, worker)
    if kind ~= head_kind or attempt ~= head_attempt or worker ~= head_worker then
      head_kind, head_attempt, head_worker = kind, attempt, worker
      head = struct.pack('>c1I8I4B', kind, now, attempt, #worker) .. worker
    end
    return head
  end

  local function size_of(id)
    local size = sizes[#id]
    if not size then
      size = string.char(#id)
      sizes[#id] = size
    end
    return size
  end

  -- Add an event to a run.
  -- kind: a letter (see the top of this file). id: the job's id, or '' for an event of the run itself. attempt, worker:
  -- those of the job; 0 and '' for an event of the run itself. why: the reason, or nil.
  add_event = function(run, kind, id, attempt, worker, why)
    if not run.changed then mark_run_changed(run) end
    run.events = run.events + 1
    local new_events = run.new_events
    new_events[#new_events + 1] = encode_event_head(kind, attempt, worker) .. size_of(id) .. id .. (why or '')
  end

  -- Fast path of `count_transition`. Before it, the script must have passed the same transition of another job to
  -- `count_transition`: with the same run, both states, attempt and worker. The transition must not be a failure.
  -- `event`: the encoded head of that other job's event, which is reused.
  count_uniform_transition = function(run, id, from, to, event)
    local counts, new_events = run.counts, run.new_events
    counts[from] = counts[from] - 1
    counts[to] = counts[to] + 1
    run.events = run.events + 1
    new_events[#new_events + 1] = event .. size_of(id) .. id
  end
end

-- Count the state transition of a run's job, and add an event for it (none if the job becomes blocked). Retrying a job
-- of a finished run reopens the run.
-- from, to: state letters; `from` is 'n' for a new job. soft: a failure of the job does not fail the run. attempt,
-- worker, why: fields of the event.
local function count_transition(run, id, from, to, soft, attempt, worker, why)
  local counts = run.counts
  if from ~= 'n' then counts[from] = counts[from] - 1 end
  counts[to] = counts[to] + 1
  if not soft and (to == 'f' or from == 'f') then run.hard_failures = run.hard_failures + (to == 'f' and 1 or -1) end
  local status = run.status
  if status ~= 'q' and status ~= 'r' and (to == 'p' or to == 'b' or to == 's' or to == 'r') then
    run.status, run.finished, run.cancelling, run.reason = 'r', 0, false, ''
    run.deadline = run.timeout > 0 and now + run.timeout or 0
    add_event(run, 'o', '', 0, '')
  end
  if to == 'r' then
    if status == 'q' then run.status = 'r' end
    if run.started == 0 then run.started = now end
  end
  if to == 'b' then
    mark_run_changed(run)
  else
    add_event(run, to, id, attempt, worker, why)
  end
end

-- Add a run to two lists (`command` is ZADD) or remove it from them (ZREM): the list of all runs with this status, and
-- the list of the runs of its workflow with this status. With status '', these are the lists of runs in any status.
local function update_run_lists(command, run, status)
  local score = command == 'ZADD' and { '0', run.id } or { run.id }
  redis.call(command, SHARD .. 'runs:' .. status .. ':', unpack(score))
  redis.call(command, SHARD .. 'runs:' .. status .. ':' .. run.workflow, unpack(score))
end

local flush_runs
do
  local STATUS_NAMES = { s = 'success', f = 'failure', x = 'cancelled' }
  -- Limits of `events`, the stream of all runs' events. MAX_EVENTS: its approximate length. EVENTS_TTL: how long it is
  -- kept after the last status change of a run, in ms.
  local MAX_EVENTS, EVENTS_TTL = 50000, 2592000000

  -- Finish a run that has no open job left. Its status follows the table of run_status.py: a failure counts before a
  -- cancellation, a cancellation before success; skipped jobs do not count.
  local function finish_if_done(run)
    local n = run.counts
    if is_finished(run) or n.s + n.b + n.p + n.r > 0 then return end
    run.status = run.hard_failures > 0 and 'f' or (run.cancelling or n.x > 0) and 'x' or 's'
    run.finished = now
    add_event(run, 'e', '', 0, '', STATUS_NAMES[run.status])
  end

  -- Write the records and new events of all changed runs, and publish the events. `prefix`: the start of the names of
  -- all Pub/Sub channels.
  flush_runs = function(prefix)
    local records, status_changed = {}, false
    for _, run in ipairs(changed_runs) do
      finish_if_done(run)
      if run.status ~= run.old_status then
        status_changed = true
        if run.old_status then update_run_lists('ZREM', run, run.old_status) end
        update_run_lists('ZADD', run, run.status)
        if is_finished(run) then
          redis.call('ZADD', SHARD .. 'run-end', format_int(run.finished + run.keep), run.id)
          redis.call('ZREM', SHARD .. 'run-deadline', run.id)
          redis.call('PUBLISH', prefix .. ':runc', run.id)
        else
          redis.call('ZREM', SHARD .. 'run-end', run.id)
          if run.deadline > 0 then redis.call('ZADD', SHARD .. 'run-deadline', format_int(run.deadline), run.id) end
        end
        run.old_status = run.status
      end
      if #run.new_events > 0 then
        local last = format_int(run.events)
        call_batched('RPUSH', 'run-events:' .. run.id, run.new_events)
        redis.call('XADD', SHARD .. 'events', 'MAXLEN', '~', MAX_EVENTS, '*', run.id,
          format_int(run.events - #run.new_events + 1) .. ' ' .. last)
        redis.call('PUBLISH', prefix .. ':events', run.id .. ':' .. last)
        run.new_events = {}
      end
      records[#records + 1] = run.id
      records[#records + 1] = encode_run(run)
      run.changed = false
    end
    call_batched('HSET', 'run', records)
    if status_changed then redis.call('PEXPIRE', SHARD .. 'events', EVENTS_TTL) end
    changed_runs = {}
  end
end
