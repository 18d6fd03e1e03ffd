-- Purpose: hand a new plain job directly to an idle worker whose claim waits in the shard: lease the job and publish it to
-- the worker's inbox; the job is never pending. If another job might have to go first, the claim keeps waiting. Offsets in
-- a record: _record.lua. Expects SHARD, now and last_fence.

-- Bytes of a message at most.
local MOST_HANDED = 6000

-- Whether no other job could have to go first: a pending one, a due one or one whose lease expired.
local function is_next(queue)
  if redis.call('EXISTS', SHARD .. 'queues', SHARD .. 'lanes:' .. queue) > 0 then return false end
  for _, index in ipairs({ 'due', 'lease' }) do
    local first = tonumber(redis.call('ZRANGE', SHARD .. index, 0, 0, 'WITHSCORES')[2])
    if first and first <= now then return false end
  end
  return true
end

-- Returns whether the job was handed over.
local function hand_over(id, raw, doc)
  local kind, size = struct.unpack('>I2I2', raw, 40)
  local queue = string.sub(raw, 87 + kind, 83 + kind + size)
  local idle = SHARD .. 'idle:' .. queue
  -- The worker that became idle last goes first: its caches are warm.
  local found = redis.call('ZRANGE', idle, -1, -1, 'WITHSCORES')
  if not found[1] then return false end
  local delay, at = struct.unpack('>I8I8', raw, 71)
  if at == 0 then at = now + delay end
  if at > now or #raw + #doc > MOST_HANDED or string.sub(raw, 84 + kind + size, 86 + kind + size) ~= '\0\0\0' then
    return false
  end
  if not is_next(queue) then return false end
  -- A job with a doc is already stored. A server that rejects writes fails here, before anything is published.
  if redis.call('HSETNX', SHARD .. 'doc', id, doc) == 0 then return false end
  local fence = math.max(tonumber(last_fence or 0) + 1, now)
  while found[1] and tonumber(found[2]) > now do
    local lane = found[1]
    local memory = SHARD .. 'memory:' .. lane
    local seq, _, _, verdicts, _, stand = cmsgpack.unpack(redis.call('GET', memory) or '\0')
    local stands = type(stand) == 'table' and stand[1] > now
    if stands and not string.find(stand[5], '\0' .. string.sub(raw, 87, 86 + kind) .. '\0', 1, true) then return false end
    redis.call('ZREM', idle, lane)
    -- Otherwise a job of another queue answered the claim, or the worker sent another exchange.
    if stands then
      local _, worker, lease, inbox = unpack(stand)
      local record = struct.pack('>c1BI8I8I8I4d', 'r', #worker, fence, 0, now, 1, 0) .. string.sub(raw, 39, 70)
        .. struct.pack('>I8I8', now, at) .. string.sub(raw, 87) .. worker
      local heard = redis.pcall('PUBLISH', inbox, struct.pack('>I8I8I8I2I2I2', seq, now, now + lease, #lane, #id, #record)
        .. lane .. id .. record .. doc)
      -- No subscriber: that worker is gone.
      if type(heard) == 'number' and heard > 0 then
        redis.call('HSET', KEYS[1], 'fence', string.format('%.0f', fence))
        redis.call('ZADD', SHARD .. 'all', '0', id)
        redis.call('ZADD', SHARD .. 'lease', string.format('%.0f', now + lease), id)
        redis.call('HSET', SHARD .. 'job', id, record)
        redis.call('HINCRBY', SHARD .. 'count', 'r' .. queue, 1)
        redis.call('SET', memory, cmsgpack.pack(seq, now + 2 * lease, fence, verdicts, { id }, true), 'PX',
          string.format('%.0f', math.ceil(2 * lease / 1000) + spare))
        return true
      end
    end
    found = redis.call('ZRANGE', idle, -1, -1, 'WITHSCORES')
  end
  return false
end
