-- Purpose: load the gate's record and apply the passage of time, for every gate script. Mirrors machine.py.
-- Expects not_after, now, stored, reply() and asking (the ticket that sent this command, or ''). Leaves the record in
-- `gate`: ended leases and tickets are removed, free capacity is offered. Empty lists at the end of the record are not
-- stored, so an idle gate is an array of four numbers.

local LIFE, OFFER, RECHECK, SLACK, DAY = 30000000, 2000000, 10000000, 1000, 86400000000
local LAPSE, LAPSED, STAGGER = '2001', -1, 10000
local VERSION, CAPACITY, LAST, SEEN, HOLDERS, QUEUE, GONE = 1, 2, 3, 4, 5, 6, 7
local TICKET, LOCK_ID, EXCLUSIVE = 1, 2, 3
local FENCE, SINCE, UNTIL, HOLDER_WHO = 4, 5, 6, 7
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

-- Count the held and offered places, and tell whether one of them is exclusive.
local function taken()
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

-- Offer free capacity in FIFO order; stop at the first waiter that does not fit. `asking` gets the reply, not a hint.
local function offer()
  if #gate[QUEUE] == 0 then return end
  local count, exclusive = taken()
  local offered = false
  for _, w in ipairs(gate[QUEUE]) do
    if w[OFFERED] == 0 then
      if not fits(count, exclusive, w[EXCLUSIVE]) then
        -- The client with the offer may have crashed: this waiter rechecks when the offer lapses.
        if offered then redis.call('PUBLISH', w[INBOX], w[TICKET] .. ' ' .. LAPSE) end
        return
      end
      offered = true
      w[OFFERED] = now + OFFER
      if w[TICKET] ~= asking then redis.call('PUBLISH', w[INBOX], w[TICKET]) end
      count, exclusive = count + 1, exclusive or w[EXCLUSIVE]
    end
  end
end

local function keep(list, alive)
  local kept = {}
  for _, item in ipairs(list) do
    if alive(item) then kept[#kept + 1] = item end
  end
  return kept
end

-- Remove what has ended at `now`, mark lapsed offers, refresh the asking ticket, and offer the freed capacity.
if #gate[HOLDERS] > 0 then
  gate[HOLDERS] = keep(gate[HOLDERS], function(h) return h[UNTIL] > now end)
end
if #gate[QUEUE] > 0 then
  gate[QUEUE] = keep(gate[QUEUE], function(w) return math.max(w[ALIVE], w[OFFERED]) > now end)
  for _, w in ipairs(gate[QUEUE]) do
    if w[OFFERED] > 0 and w[OFFERED] <= now then w[OFFERED] = LAPSED end
    if w[TICKET] == asking then
      w[ALIVE], w[OFFERED] = now + LIFE, math.max(w[OFFERED], 0)
    end
  end
end
if #gate[GONE] > 0 then
  gate[GONE] = keep(gate[GONE], function(g) return g[2] > now end)
end
offer()

-- Add a tombstone: a delayed copy of this ticket's Acquire must not bring the ticket back.
local function bury(ticket, gone_until)
  if gone_until <= now then return end
  gate[GONE] = keep(gate[GONE], function(g) return g[1] ~= ticket end)
  gate[GONE][#gate[GONE] + 1] = { ticket, gone_until }
end

-- Return the first holder as a list of zero or one.
local function first_holder()
  return { gate[HOLDERS][1] }
end

-- Offer what the command freed, write the record, and return the reply.
local function done(...)
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
  redis.call('SET', KEYS[1], cmsgpack.pack(gate), 'PX', life)
  return reply(...)
end
