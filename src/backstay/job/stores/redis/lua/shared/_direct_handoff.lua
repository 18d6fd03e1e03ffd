-- Purpose: hand a new job directly to an idle worker whose claim waits in the shard: lease the job to the worker and
-- publish it on the worker's channel (its inbox), without making it pending first. Only for a plain job, which has no
-- run, chain, blockers, unique key or concurrency key. _record.lua explains the offsets in a record.
-- Expects SHARD, now and last_fence.

-- The largest size of a job (record, arguments and metadata, in bytes) that is handed off. A larger job becomes pending
-- instead.
local MAX_HANDOFF_BYTES = 6000

-- Return whether only an ordinary claim can decide which job is next. This is so if another job may precede the new one
-- (a pending job of the queue, a due job, or a job whose lease expired), or if any queue is paused or rate-limited.
local function needs_claim(queue)
  if redis.call('EXISTS', SHARD .. 'queues', SHARD .. 'lanes:' .. queue) > 0 then return true end
  for _, index in ipairs({ 'due', 'lease' }) do
    local first = tonumber(redis.call('ZRANGE', SHARD .. index, 0, 0, 'WITHSCORES')[2])
    if first and first <= now then return true end
  end
  return false
end

-- Hand a new job to the worker of a waiting claim. Returns whether a worker took the job; if not, the caller enqueues
-- it as usual. `raw`: the job's record as the client sent it. `doc`: its arguments and metadata.
local function hand_off(id, raw, doc)
  local kind, size = struct.unpack('>I2I2', raw, 40)
  local queue = string.sub(raw, 87 + kind, 83 + kind + size)
  local idle = SHARD .. 'idle:' .. queue
  -- Try first the claim with the largest score, whose wait ends last: its worker became idle last and has the warmest
  -- caches.
  local newest = redis.call('ZRANGE', idle, -1, -1, 'WITHSCORES')
  if not newest[1] then return false end
  local delay, at = struct.unpack('>I8I8', raw, 71)
  if at == 0 then at = now + delay end
  if at > now or #raw + #doc > MAX_HANDOFF_BYTES or string.sub(raw, 84 + kind + size, 86 + kind + size) ~= '\0\0\0' then
    return false
  end
  if needs_claim(queue) then return false end
  -- HSETNX returns 0 if the job is already stored. It is the first write: a server that rejects writes raises an error
  -- here, so that the job is not published.
  if redis.call('HSETNX', SHARD .. 'doc', id, doc) == 0 then return false end
  local fence = math.max(tonumber(last_fence or 0) + 1, now)
  while newest[1] and tonumber(newest[2]) > now do
    local channel = newest[1]
    local reply_key = SHARD .. 'reply:' .. channel
    local seq, _, _, verdicts, _, waiting = cmsgpack.unpack(redis.call('GET', reply_key) or '\0')
    local is_waiting = type(waiting) == 'table' and waiting[1] > now
    local job_type = '\0' .. string.sub(raw, 87, 86 + kind) .. '\0'
    if is_waiting and not string.find(waiting[5], job_type, 1, true) then return false end
    redis.call('ZREM', idle, channel)
    -- `is_waiting` is false if the claim no longer waits: it has got a job of another queue, or its worker has sent a
    -- new exchange.
    if is_waiting then
      local _, worker, lease, inbox = unpack(waiting)
      local record = struct.pack('>c1BI8I8I8I4d', 'r', #worker, fence, 0, now, 1, 0) .. string.sub(raw, 39, 70)
        .. struct.pack('>I8I8', now, at) .. string.sub(raw, 87) .. worker
      local head = struct.pack('>I8I8I8I2I2I2', seq, now, now + lease, #channel, #id, #record)
      local receivers = redis.pcall('PUBLISH', inbox, head .. channel .. id .. record .. doc)
      -- If the inbox has no subscriber, the worker is gone: try the next waiting claim.
      if type(receivers) == 'number' and receivers > 0 then
        redis.call('HSET', KEYS[1], 'fence', string.format('%.0f', fence))
        redis.call('ZADD', SHARD .. 'all', '0', id)
        redis.call('ZADD', SHARD .. 'lease', string.format('%.0f', now + lease), id)
        redis.call('HSET', SHARD .. 'job', id, record)
        redis.call('HINCRBY', SHARD .. 'count', 'r' .. queue, 1)
        redis.call('SET', reply_key, cmsgpack.pack(seq, now + 2 * lease, fence, verdicts, { id }, true), 'PX',
          string.format('%.0f', math.ceil(2 * lease / 1000) + extra_ttl))
        return true
      end
    end
    newest = redis.call('ZRANGE', idle, -1, -1, 'WITHSCORES')
  end
  return false
end
