-- Purpose: load the record of an idempotency key and apply the passage of time. Every idempotency script includes this
--   file. It implements the same rules as machine.py.
-- Expects the locals not_after, now, stored, reply() and write_record().
-- Defines `entry`, the decoded record, without what has expired: a call or an outcome that has ended, waiters that no
--   longer ask, and tombstones. A tombstone is an abandoned ticket, whose delayed commands are refused for some time.

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

local function filter(list, alive)
  if #list == 0 then return list end
  local kept = {}
  for _, item in ipairs(list) do
    if alive(item) then kept[#kept + 1] = item end
  end
  return kept
end

-- Return the time (µs) at which the key becomes idle if no further command arrives. For a stored outcome, this is its
-- expiry. For a running call, it is a day after the end of its lease, because the call may still send its outcome.
local function ends()
  return entry[PHASE] == 'running' and entry[UNTIL] + DAY or entry[UNTIL]
end

local function reset_to_idle()
  entry[PHASE], entry[TICKET], entry[BY], entry[PRINT] = 'idle', '', '', ''
  entry[FENCE], entry[SINCE], entry[UNTIL] = 0, 0, 0
end

-- Reset the key to idle if its call or outcome has ended, and remove expired waiters and tombstones. `ended`: whether a
-- stored outcome has expired. If so, finish() deletes the outcome, which is stored under KEYS[2]. Otherwise the fast
-- path of begin.lua, which reads only KEYS[2], could still return it.
local ended = false
if entry[PHASE] ~= 'idle' and now >= ends() then
  ended = entry[PHASE] ~= 'running'
  reset_to_idle()
end
entry[WAITERS] = filter(entry[WAITERS], function(w) return w[ALIVE] > now end)
entry[GONE] = filter(entry[GONE], function(g) return g[2] > now end)

-- Wake the first waiter, because the key is free. The second waiter gets a hint to send its command again after LAPSE ms,
-- in case the first waiter has crashed.
local function wake_next()
  local first, second = entry[WAITERS][1], entry[WAITERS][2]
  if first then redis.call('PUBLISH', first[INBOX], first[1]) end
  if second then redis.call('PUBLISH', second[INBOX], second[1] .. ' ' .. LAPSE) end
end

-- Return the TTL of the record in ms: until a day after the last time that the record contains.
local function life()
  local last = math.max(entry[SEEN], entry[LAST])
  if entry[PHASE] ~= 'idle' then last = math.max(last, ends()) end
  for _, w in ipairs(entry[WAITERS]) do last = math.max(last, w[ALIVE]) end
  for _, g in ipairs(entry[GONE]) do last = math.max(last, g[2]) end
  return math.ceil((last + DAY - now) / 1000)
end

-- End the script: delete an expired outcome, write the record, and return the reply, or the server's refusal to write.
local function finish(...)
  if ended then redis.call('DEL', KEYS[2]) end
  return write_record(cmsgpack.pack(entry), string.format('%.0f', life())) or reply(...)
end
