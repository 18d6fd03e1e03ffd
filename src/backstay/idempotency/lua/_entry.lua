-- Purpose: load a key's record and apply the passage of time, for every idempotency script. Mirrors machine.py.
-- Expects not_after, now, stored and reply(). Leaves the record in `entry`, without what has ended.

local LIFE, RECHECK, SLACK, DAY, MAX_WAITERS = 30000000, 10000000, 1000, 86400000000, 1000
local LAPSE, STAGGER = '2001', 10000
local VERSION, LAST, SEEN, PHASE, TICKET, BY, FENCE, SINCE, UNTIL, PRINT, WAITERS, GONE =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
local INBOX, ALIVE = 2, 3 -- of a waiter, whose ticket is its first item

local entry
if stored then
  local readable, record = pcall(cmsgpack.unpack, stored)
  if not readable or type(record) ~= 'table' or record[VERSION] ~= 1 or #record ~= GONE then
    return redis.error_reply('CORRUPT record of another version, or damaged')
  end
  entry = record
  if entry[SEEN] > now then now = entry[SEEN] end
  entry[SEEN] = now
else
  entry = { 1, 0, now, 'idle', '', '', 0, 0, 0, '', {}, {} }
end
if now > not_after then return reply('expired', now) end

local function keep(list, alive)
  if #list == 0 then return list end
  local kept = {}
  for _, item in ipairs(list) do
    if alive(item) then kept[#kept + 1] = item end
  end
  return kept
end

-- Return when the key becomes idle without a further command: a running call stays for a day after its lease.
local function ends()
  return entry[PHASE] == 'running' and entry[UNTIL] + DAY or entry[UNTIL]
end

local function idle()
  entry[PHASE], entry[TICKET], entry[BY], entry[PRINT] = 'idle', '', '', ''
  entry[FENCE], entry[SINCE], entry[UNTIL] = 0, 0, 0
end

-- Remove what has ended at `now`. The next write also drops an expired outcome, which would be replayed otherwise.
local ended = false
if entry[PHASE] ~= 'idle' and now >= ends() then
  ended = entry[PHASE] ~= 'running'
  idle()
end
entry[WAITERS] = keep(entry[WAITERS], function(w) return w[ALIVE] > now end)
entry[GONE] = keep(entry[GONE], function(g) return g[2] > now end)

-- Wake the first waiter, because the key is free, and let the second recheck later, in case the first has crashed.
local function wake_heirs()
  local first, second = entry[WAITERS][1], entry[WAITERS][2]
  if first then redis.call('PUBLISH', first[INBOX], first[1]) end
  if second then redis.call('PUBLISH', second[INBOX], second[1] .. ' ' .. LAPSE) end
end

-- Delete the stored outcome. SET with a TTL instead of DEL, so that the ACL of the Redis user need not include DEL.
local function drop()
  redis.call('SET', KEYS[2], '', 'PX', '1')
end

-- Return the TTL of the record in ms.
local function life()
  local last = math.max(entry[SEEN], entry[LAST])
  if entry[PHASE] ~= 'idle' then last = math.max(last, ends()) end
  for _, w in ipairs(entry[WAITERS]) do last = math.max(last, w[ALIVE]) end
  for _, g in ipairs(entry[GONE]) do last = math.max(last, g[2]) end
  return math.ceil((last + DAY - now) / 1000)
end

-- Write the record and return the reply.
local function done(...)
  if ended then drop() end
  redis.call('SET', KEYS[1], cmsgpack.pack(entry), 'PX', string.format('%.0f', life()))
  return reply(...)
end
