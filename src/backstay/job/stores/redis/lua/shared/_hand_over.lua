-- Purpose: a plain job for a worker that has nothing to do and left its claim standing: leased to it and sent to its inbox,
-- without ever being pending. Where anything might go before the job, the claim is left alone. Places in a record:
-- _record.lua. Expects SHARD, now and last_fence.

-- With more to say, an inbox is not the place for it.
local MOST_HANDED = 6000

-- Whether no other job could have to come first: one that waits, is due or has lost its worker.
local function is_next(queue)
  if redis.call('EXISTS', SHARD .. 'queues', SHARD .. 'lanes:' .. queue) > 0 then return false end
  for _, index in ipairs({ 'due', 'lease' }) do
    local first = tonumber(redis.call('ZRANGE', SHARD .. index, 0, 0, 'WITHSCORES')[2])
    if first and first <= now then return false end
  end
  return true
end

-- Answers whether it was handed over.
local function hand_over(id, raw, doc)
  local kind, size = struct.unpack('>I2I2', raw, 40)
  local queue = string.sub(raw, 87 + kind, 83 + kind + size)
  local idle = SHARD .. 'idle:' .. queue
  -- Who came last is asked first: what it needs is warm.
  local found = redis.call('ZRANGE', idle, -1, -1, 'WITHSCORES')
  if not found[1] then return false end
  local delay, at = struct.unpack('>I8I8', raw, 71)
  if at == 0 then at = now + delay end
  if at > now or #raw + #doc > MOST_HANDED or string.sub(raw, 84 + kind + size, 86 + kind + size) ~= '\0\0\0' then
    return false
  end
  if not is_next(queue) then return false end
  -- Known already, if it has a doc. A server that takes no writes says so now, before anybody is told.
  if redis.call('HSETNX', SHARD .. 'doc', id, doc) == 0 then return false end
  local fence = math.max(tonumber(last_fence or 0) + 1, now)
  while found[1] and tonumber(found[2]) > now do
    local lane = found[1]
    local memory = SHARD .. 'memory:' .. lane
    local seq, _, _, verdicts, _, stand = cmsgpack.unpack(redis.call('GET', memory) or '\0')
    local stands = type(stand) == 'table' and stand[1] > now
    if stands and not string.find(stand[5], '\0' .. string.sub(raw, 87, 86 + kind) .. '\0', 1, true) then return false end
    redis.call('ZREM', idle, lane)
    -- Else a job of another queue has come before, or the worker itself.
    if stands then
      local _, worker, lease, inbox = unpack(stand)
      local record = struct.pack('>c1BI8I8I8I4d', 'r', #worker, fence, 0, now, 1, 0) .. string.sub(raw, 39, 70)
        .. struct.pack('>I8I8', now, at) .. string.sub(raw, 87) .. worker
      local heard = redis.pcall('PUBLISH', inbox, struct.pack('>I8I8I8I2I2I2', seq, now, now + lease, #lane, #id, #record)
        .. lane .. id .. record .. doc)
      -- Nobody: that worker is gone.
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
