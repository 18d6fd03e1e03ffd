-- Purpose: fast path of an exchange that only claims. It applies if no lease has expired, no scheduled job is due, and
-- the jobs to claim are plain jobs (_record.lua) in a single lane without rate and labels. Its result is that of the
-- general path in exchange.lua, in half the time, because it skips the set-up of the files that exchange.lua includes.
-- _record.lua explains the offsets in a record. Part of exchange.lua.

-- Claim jobs and return the reply of the exchange. If the fast path does not apply, write nothing and return nil.
local function fast_claim()
  if want == 0 or want > 1000 or is_replay or ARGV[5] or ARGV[2] ~= '1' or #groups ~= 1 then return end
  local next_at
  for _, index in ipairs({ 'lease', 'due' }) do
    local first = tonumber(redis.call('ZRANGE', SHARD .. index, 0, 0, 'WITHSCORES')[2])
    if first and first <= now then return end
    if first and not (next_at and next_at < first) then next_at = first end
  end
  if redis.call('EXISTS', SHARD .. 'queues') == 1 then return end
  local lane, queue
  for _, name in ipairs(groups[1]) do
    local lanes = redis.call('SMEMBERS', SHARD .. 'lanes:' .. name)
    if lanes[1] then
      if lane or lanes[2] or lanes[1] ~= name .. '\0\0\0' then return end
      lane, queue = lanes[1], name
    end
  end
  local ids, records, leases, reply, fence = {}, {}, {}, { '' }, 0
  if lane then
    ids = redis.call('ZRANGE', SHARD .. 'lane:' .. lane, 0, want - 1)
    local n = #ids
    if n == 0 then return end
    local raws = redis.call('HMGET', SHARD .. 'job', unpack(ids))
    for i = 1, n do
      local raw = raws[i]
      if not raw or string.byte(raw) ~= 112 or string.byte(raw, 44) > 0 or string.byte(raw, 45) > 0 then return end
    end
    local docs = redis.call('HMGET', SHARD .. 'doc', unpack(ids))
    fence = math.max(tonumber(last_fence or 0) + 1, now)
    local lease_end = string.format('%.0f', now + lease)
    for i = 1, n do
      local id, raw = ids[i], raws[i]
      local attempt = struct.unpack('>I4', raw, 27)
      local kind, size = struct.unpack('>I2I2', raw, 40)
      local at = 86 + kind + size
      local record = struct.pack('>c1BI8I8I8I4d', 'r', #worker, fence + i - 1, 0, now, attempt + 1, 0)
        .. string.sub(raw, 39, at) .. worker .. string.sub(raw, at + 1)
      records[2 * i - 1], records[2 * i] = id, record
      leases[2 * i - 1], leases[2 * i] = lease_end, id
      reply[3 * i - 1], reply[3 * i], reply[3 * i + 1] = id, record, docs[i] or ''
    end
    -- Add the jobs to the index `lease`, then write their records, then remove them from the lane. If the server is
    -- killed between these writes (_transitions.lua), a job is in two indexes, but never in none.
    redis.call('HSET', KEYS[1], 'fence', string.format('%.0f', fence + n - 1))
    redis.call('ZADD', SHARD .. 'lease', unpack(leases))
    redis.call('HSET', SHARD .. 'job', unpack(records))
    redis.call('ZREM', SHARD .. 'lane:' .. lane, unpack(ids))
    if n < want then redis.call('SREM', SHARD .. 'lanes:' .. queue, lane) end
    local counts = redis.call('HMGET', SHARD .. 'count', 'p' .. queue, 'r' .. queue)
    local left, running = tonumber(counts[1] or 0) - n, string.format('%.0f', tonumber(counts[2] or 0) + n)
    if left > 0 and (n == want or redis.call('EXISTS', SHARD .. 'parked-since:' .. queue) == 1) then
      redis.call('HSET', SHARD .. 'count', 'r' .. queue, running, 'p' .. queue, string.format('%.0f', left))
    else
      redis.call('HSET', SHARD .. 'count', 'r' .. queue, running)
      redis.call('HDEL', SHARD .. 'count', 'p' .. queue)
    end
    if not (next_at and next_at < now + lease) then next_at = now + lease end
  end
  store_reply(fence, '', ids)
  reply[1] = cmsgpack.pack({ now, '', next_at and next_at - now or -1, now + lease, {}, #ids, {}, 0, 0, 0 })
  return reply
end

local fast_reply = fast_claim()
if fast_reply then return fast_reply end
