-- Purpose: a key's record and the passing of time, shared by every script of this room. Mirrors machine.py.
-- Expects not_after, now, stored and reply(); leaves the record in `entry`, with what has ended gone.

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

-- When the key is idle again if nobody does anything: a call whose lease ended lingers for a day.
local function ends()
  return entry[PHASE] == 'running' and entry[UNTIL] + DAY or entry[UNTIL]
end

local function idle()
  entry[PHASE], entry[TICKET], entry[BY], entry[PRINT] = 'idle', '', '', ''
  entry[FENCE], entry[SINCE], entry[UNTIL] = 0, 0, 0
end

-- Let time pass: what has ended is no longer there. What was kept of it goes with the next write: it would be replayed.
local ended = false
if entry[PHASE] ~= 'idle' and now >= ends() then
  ended = entry[PHASE] ~= 'running'
  idle()
end
entry[WAITERS] = keep(entry[WAITERS], function(w) return w[ALIVE] > now end)
entry[GONE] = keep(entry[GONE], function(g) return g[2] > now end)

-- The key is free: the first who waits may begin. If it is dead, the second finds out.
local function wake_heirs()
  local first, second = entry[WAITERS][1], entry[WAITERS][2]
  if first then redis.call('PUBLISH', first[INBOX], first[1]) end
  if second then redis.call('PUBLISH', second[INBOX], second[1] .. ' ' .. LAPSE) end
end

-- What was kept goes. Without DEL, so that a user needs no right to it.
local function drop()
  redis.call('SET', KEYS[2], '', 'PX', '1')
end

-- How long the record matters, in ms.
local function life()
  local last = math.max(entry[SEEN], entry[LAST])
  if entry[PHASE] ~= 'idle' then last = math.max(last, ends()) end
  for _, w in ipairs(entry[WAITERS]) do last = math.max(last, w[ALIVE]) end
  for _, g in ipairs(entry[GONE]) do last = math.max(last, g[2]) end
  return math.ceil((last + DAY - now) / 1000)
end

-- Write the record, pass the reply on.
local function done(...)
  if ended then drop() end
  redis.call('SET', KEYS[1], cmsgpack.pack(entry), 'PX', string.format('%.0f', life()))
  return reply(...)
end
