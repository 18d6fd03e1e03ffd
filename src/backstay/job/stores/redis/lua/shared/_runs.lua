-- Purpose: the record of a run: job counts by state, events and status. `move` reports every transition of a job here;
-- `flush_runs` writes all runs once. Mirrors `runs.py`. Expects SHARD, now and _record.lua.
--
-- A run's record: status (q queued, r running, s success, f failure, x cancelled), whether its cancellation is requested,
-- times, number of the last event, version, number of failed jobs that are not soft, number of jobs by state (of a chain
-- only the last one), workflow, reason of the cancellation.
-- An event: kind (the state that a job entered, or l: its lease expired; of the run: n created, e ended, o reopened,
-- w cancellation requested), time, attempt, worker, job, reason.

local RUN_HEAD, RUN_SIZE = '>c1BI8I8I8I8I8I8I4I4I4I4I4I4I4I4I4I4I4I2', 96

-- Runs by id (false: not stored), and the runs that this script changed.
local runs, touched = {}, {}

local function read_run(id, raw)
  local status, wanted, created, started, finished, deadline, timeout, keep, events, version, hard, s, b, p, r, c, f, x,
    k, size = struct.unpack(RUN_HEAD, raw)
  return {
    id = id, status = status, was = status, cancelling = wanted == 1, created = created, started = started,
    finished = finished, deadline = deadline, timeout = timeout, keep = keep, events = events, version = version,
    hard = hard, counts = { s = s, b = b, p = p, r = r, c = c, f = f, x = x, k = k }, told = {},
    workflow = string.sub(raw, RUN_SIZE + 1, RUN_SIZE + size), reason = string.sub(raw, RUN_SIZE + size + 1),
  }
end

local function packed_run(run)
  local n = run.counts
  return struct.pack(RUN_HEAD, run.status, run.cancelling and 1 or 0, run.created, run.started, run.finished, run.deadline,
    run.timeout, run.keep, run.events, run.version, run.hard, n.s, n.b, n.p, n.r, n.c, n.f, n.x, n.k, #run.workflow)
    .. run.workflow .. run.reason
end

local function run_of(id)
  if runs[id] == nil then
    local raw = redis.call('HGET', SHARD .. 'run', id)
    runs[id] = raw and read_run(id, raw)
  end
  return runs[id]
end

local function is_over(run)
  return run.status ~= 'q' and run.status ~= 'r'
end

local function touch_run(run)
  if not run.changed then
    run.changed = true
    touched[#touched + 1] = run
  end
end

local tell, event_head, moved_alike
do
  -- Many events of a script share their head: cached.
  local head, head_kind, head_attempt, head_worker
  local sizes = {}

  -- Encode an event without the job and the reason.
  event_head = function(kind, attempt, worker)
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

  tell = function(run, kind, id, attempt, worker, why)
    if not run.changed then touch_run(run) end
    run.events = run.events + 1
    local told = run.told
    told[#told + 1] = event_head(kind, attempt, worker) .. size_of(id) .. id .. (why or '')
  end

  -- The fast path of `moved` for a job with the same transition as another before it (not a failure). `event`: the event
  -- without the job.
  moved_alike = function(run, id, from, to, event)
    local counts, told = run.counts, run.told
    counts[from] = counts[from] - 1
    counts[to] = counts[to] + 1
    run.events = run.events + 1
    told[#told + 1] = event .. size_of(id) .. id
  end
end

-- Count a job's state transition and add its event.
local function moved(run, id, from, to, soft, attempt, worker, why)
  local counts = run.counts
  if from ~= 'n' then counts[from] = counts[from] - 1 end
  counts[to] = counts[to] + 1
  if not soft and (to == 'f' or from == 'f') then run.hard = run.hard + (to == 'f' and 1 or -1) end
  local status = run.status
  if status ~= 'q' and status ~= 'r' and (to == 'p' or to == 'b' or to == 's' or to == 'r') then
    run.status, run.finished, run.cancelling, run.reason = 'r', 0, false, ''
    run.deadline = run.timeout > 0 and now + run.timeout or 0
    tell(run, 'o', '', 0, '')
  end
  if to == 'r' then
    if status == 'q' then run.status = 'r' end
    if run.started == 0 then run.started = now end
  end
  if to == 'b' then
    touch_run(run)
  else
    tell(run, to, id, attempt, worker, why)
  end
end

-- Add or remove a run in the lists by status, by workflow, by both and by neither.
local function list_run(command, run, status)
  local score = command == 'ZADD' and { '0', run.id } or { run.id }
  redis.call(command, SHARD .. 'runs:' .. status .. ':', unpack(score))
  redis.call(command, SHARD .. 'runs:' .. status .. ':' .. run.workflow, unpack(score))
end

local flush_runs
do
  local STATUS_NAMES = { s = 'success', f = 'failure', x = 'cancelled' }
  -- Approximate number of entries in the stream of all runs' events, and its lifetime after the last entry, in ms.
  local MOST_EVENTS, EVENTS_LAST = 50000, 2592000000

  local function end_if_done(run)
    local n = run.counts
    if is_over(run) or n.s + n.b + n.p + n.r > 0 then return end
    run.status = run.cancelling and 'x' or run.hard > 0 and 'f' or 's'
    run.finished = now
    tell(run, 'e', '', 0, '', STATUS_NAMES[run.status])
  end

  flush_runs = function(prefix)
    local records, lasting = {}, false
    for _, run in ipairs(touched) do
      end_if_done(run)
      if run.status ~= run.was then
        lasting = true
        if run.was then list_run('ZREM', run, run.was) end
        list_run('ZADD', run, run.status)
        if is_over(run) then
          redis.call('ZADD', SHARD .. 'run-end', digits(run.finished + run.keep), run.id)
          redis.call('ZREM', SHARD .. 'run-deadline', run.id)
          redis.call('PUBLISH', prefix .. ':runc', run.id)
        else
          redis.call('ZREM', SHARD .. 'run-end', run.id)
          if run.deadline > 0 then redis.call('ZADD', SHARD .. 'run-deadline', digits(run.deadline), run.id) end
        end
        run.was = run.status
      end
      if #run.told > 0 then
        local last = digits(run.events)
        each('RPUSH', 'run-events:' .. run.id, run.told)
        redis.call('XADD', SHARD .. 'events', 'MAXLEN', '~', MOST_EVENTS, '*', run.id,
          digits(run.events - #run.told + 1) .. ' ' .. last)
        redis.call('PUBLISH', prefix .. ':events', run.id .. ':' .. last)
        run.told = {}
      end
      records[#records + 1] = run.id
      records[#records + 1] = packed_run(run)
      run.changed = false
    end
    each('HSET', 'run', records)
    if lasting then redis.call('PEXPIRE', SHARD .. 'events', EVENTS_LAST) end
    touched = {}
  end
end
