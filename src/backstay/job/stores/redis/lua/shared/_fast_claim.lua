-- Purpose: the fast path of an exchange without finishes, while no lease has expired, no job is due and all pending jobs are
-- plain jobs of one plain lane. Same result as the rest of exchange.lua in half the time, since it skips the set-up of the
-- general path. Returns nothing, without any write, when a condition fails. Offsets in a record: _record.lua. Expects
-- SHARD, now, last_fence and the arguments of exchange.lua.

local function brisk()
  if want == 0 or want > 1000 or again or ARGV[5] or ARGV[2] ~= '1' or #groups ~= 1 then return end
  local soonest
  for _, index in ipairs({ 'lease', 'due' }) do
    local first = tonumber(redis.call('ZRANGE', SHARD .. index, 0, 0, 'WITHSCORES')[2])
    if first and first <= now then return end
    if first and not (soonest and soonest < first) then soonest = first end
  end
  if redis.call('EXISTS', SHARD .. 'queues') == 1 then return end
  local where, queue
  for _, name in ipairs(groups[1]) do
    local lanes = redis.call('SMEMBERS', SHARD .. 'lanes:' .. name)
    if lanes[1] then
      if where or lanes[2] or lanes[1] ~= name .. '\0\0\0' then return end
      where, queue = lanes[1], name
    end
  end
  local ids, records, leases, answer, fence = {}, {}, {}, { '' }, 0
  if where then
    ids = redis.call('ZRANGE', SHARD .. 'lane:' .. where, 0, want - 1)
    local n = #ids
    if n == 0 then return end
    local raws = redis.call('HMGET', SHARD .. 'job', unpack(ids))
    for i = 1, n do
      local raw = raws[i]
      if not raw or string.byte(raw) ~= 112 or string.byte(raw, 44) > 0 or string.byte(raw, 45) > 0 then return end
    end
    local docs = redis.call('HMGET', SHARD .. 'doc', unpack(ids))
    fence = math.max(tonumber(last_fence or 0) + 1, now)
    local ends = string.format('%.0f', now + lease)
    for i = 1, n do
      local id, raw = ids[i], raws[i]
      local attempt = struct.unpack('>I4', raw, 27)
      local kind, size = struct.unpack('>I2I2', raw, 40)
      local at = 86 + kind + size
      local record = struct.pack('>c1BI8I8I8I4d', 'r', #worker, fence + i - 1, 0, now, attempt + 1, 0)
        .. string.sub(raw, 39, at) .. worker .. string.sub(raw, at + 1)
      records[2 * i - 1], records[2 * i] = id, record
      leases[2 * i - 1], leases[2 * i] = ends, id
      answer[3 * i - 1], answer[3 * i], answer[3 * i + 1] = id, record, docs[i] or ''
    end
    -- The order of the writes matters: _moves.lua.
    redis.call('HSET', KEYS[1], 'fence', string.format('%.0f', fence + n - 1))
    redis.call('ZADD', SHARD .. 'lease', unpack(leases))
    redis.call('HSET', SHARD .. 'job', unpack(records))
    redis.call('ZREM', SHARD .. 'lane:' .. where, unpack(ids))
    if n < want then redis.call('SREM', SHARD .. 'lanes:' .. queue, where) end
    local counts = redis.call('HMGET', SHARD .. 'count', 'p' .. queue, 'r' .. queue)
    local left, running = tonumber(counts[1] or 0) - n, string.format('%.0f', tonumber(counts[2] or 0) + n)
    if left > 0 and (n == want or redis.call('EXISTS', SHARD .. 'parked-since:' .. queue) == 1) then
      redis.call('HSET', SHARD .. 'count', 'r' .. queue, running, 'p' .. queue, string.format('%.0f', left))
    else
      redis.call('HSET', SHARD .. 'count', 'r' .. queue, running)
      redis.call('HDEL', SHARD .. 'count', 'p' .. queue)
    end
    if not (soonest and soonest < now + lease) then soonest = now + lease end
  end
  remember(fence, '', ids)
  answer[1] = cmsgpack.pack({ now, '', soonest and soonest - now or -1, now + lease, {}, #ids, {}, 0, 0, 0 })
  return answer
end

local answer = brisk()
if answer then return answer end
