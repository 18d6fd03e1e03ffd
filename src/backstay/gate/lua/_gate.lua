-- Purpose: load the gate's record and apply the passage of time. Every gate script includes this file, which implements
--   the same rules as machine.py.
-- Expects the locals not_after, now, stored, reply(), write_record() and sender (the ticket if the command is an
--   Acquire, else '').
-- Defines `gate`, the decoded record: ended leases and expired tickets are removed, and free capacity has been offered
--   to waiters. Empty lists at the end of a record are not stored: the record of an idle gate is an array of four
--   numbers.

local LIFE, OFFER, RECHECK, SLACK, DAY = 30000000, 2000000, 10000000, 1000, 86400000000
local LAPSE, LAPSED, STAGGER = '2001', -1, 10000
local GRACE, LONGEST_JUMP = 15000000, 3600000000
local VERSION, CAPACITY, LAST, SEEN, HOLDERS, QUEUE, GONE = 1, 2, 3, 4, 5, 6, 7
local TICKET, LOCK_ID, EXCLUSIVE = 1, 2, 3
local FENCE, SINCE, UNTIL, HOLDER_WHO, TTL_NUMBER = 4, 5, 6, 7, 8
local INBOX, ENTERED, ALIVE, OFFERED, WAITER_WHO = 4, 5, 6, 7, 8

local gate
if stored then
  local readable, record = pcall(cmsgpack.unpack, stored)
  if not readable or type(record) ~= 'table' or record[VERSION] ~= 1 then
    return redis.error_reply('CORRUPT record of another version, or damaged')
  end
  gate = record
  if gate[SEEN] > now then now = gate[SEEN] end
  gate[SEEN] = now
else
  gate = { 1, 0, 0, now }
end
if now > not_after then return reply('expired', now) end
gate[HOLDERS], gate[QUEUE], gate[GONE] = gate[HOLDERS] or {}, gate[QUEUE] or {}, gate[GONE] or {}

-- Return the number of held and offered places, and whether one of them is exclusive.
local function count_taken()
  local count, exclusive = #gate[HOLDERS], false
  for _, h in ipairs(gate[HOLDERS]) do exclusive = exclusive or h[EXCLUSIVE] end
  for _, w in ipairs(gate[QUEUE]) do
    if w[OFFERED] > 0 then count, exclusive = count + 1, exclusive or w[EXCLUSIVE] end
  end
  return count, exclusive
end

local function fits(count, taken_exclusively, wants_exclusive)
  if wants_exclusive then return count == 0 end
  return not taken_exclusively and (gate[CAPACITY] == 0 or count < gate[CAPACITY])
end

-- Offer free capacity to the waiters in FIFO order, and stop at the first waiter that does not fit. Each waiter with a
-- new offer gets a hint, except the ticket `sender`: its client learns of the offer from this script's reply.
local function offer()
  if #gate[QUEUE] == 0 then return end
  local count, exclusive = count_taken()
  local offered = false
  for _, w in ipairs(gate[QUEUE]) do
    if w[OFFERED] == 0 then
      if not fits(count, exclusive, w[EXCLUSIVE]) then
        -- A client that just got an offer may have crashed. So the first waiter without an offer gets a hint to recheck
        -- after LAPSE ms, when that offer has lapsed.
        if offered then redis.call('PUBLISH', w[INBOX], w[TICKET] .. ' ' .. LAPSE) end
        return
      end
      offered = true
      w[OFFERED] = now + OFFER
      if w[TICKET] ~= sender then redis.call('PUBLISH', w[INBOX], w[TICKET]) end
      count, exclusive = count + 1, exclusive or w[EXCLUSIVE]
    end
  end
end

local function filter(list, alive)
  local kept = {}
  for _, item in ipairs(list) do
    if alive(item) then kept[#kept + 1] = item end
  end
  return kept
end

-- Apply the passage of time: remove leases, tickets and tombstones that have ended, and mark lapsed offers. Then
-- extend the life of the ticket `sender`, whose client has just sent an Acquire, and offer the free capacity.
if #gate[HOLDERS] > 0 then
  gate[HOLDERS] = filter(gate[HOLDERS], function(h) return h[UNTIL] > now end)
end
if #gate[QUEUE] > 0 then
  gate[QUEUE] = filter(gate[QUEUE], function(w)
    local ends = math.max(w[ALIVE], w[OFFERED])
    if ends <= now then
      if w[OFFERED] == LAPSED or now - ends >= LONGEST_JUMP then return false end
      -- The ticket has just expired, perhaps only because the clock jumped: it keeps its position if its client
      -- sends an Acquire within GRACE.
      w[ALIVE], w[OFFERED] = now + GRACE, LAPSED
      if w[TICKET] ~= sender then redis.call('PUBLISH', w[INBOX], w[TICKET]) end
    end
    return true
  end)
  for _, w in ipairs(gate[QUEUE]) do
    if w[OFFERED] > 0 and w[OFFERED] <= now then w[OFFERED] = LAPSED end
    if w[TICKET] == sender then
      w[ALIVE], w[OFFERED] = now + LIFE, math.max(w[OFFERED], 0)
    end
  end
end
if #gate[GONE] > 0 then
  gate[GONE] = filter(gate[GONE], function(g) return g[2] > now end)
end
offer()

-- Add a tombstone for a removed ticket. Until `gone_until` (engine time in µs) the gate refuses an Acquire with this
-- ticket: a copy that was delayed on the network must not bring the ticket back.
local function add_tombstone(ticket, gone_until)
  if gone_until <= now then return end
  gate[GONE] = filter(gate[GONE], function(g) return g[1] ~= ticket end)
  gate[GONE][#gate[GONE] + 1] = { ticket, gone_until }
end

-- Return a list with the first holder, or an empty list.
local function first_holder()
  return { gate[HOLDERS][1] }
end

-- End the script: offer the capacity that the command freed, write the record, and return the reply, or the server's
-- refusal to write.
local function finish(...)
  offer()
  local last = math.max(gate[SEEN], gate[LAST])
  for _, h in ipairs(gate[HOLDERS]) do last = math.max(last, h[UNTIL]) end
  for _, w in ipairs(gate[QUEUE]) do last = math.max(last, w[ALIVE], w[OFFERED]) end
  for _, g in ipairs(gate[GONE]) do last = math.max(last, g[2]) end
  local life = string.format('%.0f', math.ceil((last + DAY - now) / 1000))
  for i = GONE, HOLDERS, -1 do
    if #gate[i] > 0 then break end
    gate[i] = nil
  end
  return write_record(cmsgpack.pack(gate), life) or reply(...)
end
