-- Purpose: advance a ticket: enter the queue, refresh its place, accept an offer, or repeat a grant.
-- KEYS: 1 = the gate
-- ARGV: 1 = {not_after, ticket, lock_id, exclusive, capacity, ttl, inbox, max_waiters, who}; 2 = test clock
-- Returns: {granted, fence, since, until} | {queued, position, recheck_after, count, holders} |
--          {held, count, holders} | {full, waiters} | {disagree, capacity} | {expired, now}

local _, not_after, ticket, lock_id, exclusive, capacity, ttl, inbox, max_waiters, who =
  cmsgpack.unpack_limit(ARGV[1], 9, 1)
-- include: _clock.lua

-- Fast path for an idle gate, without holders and waiters, which is the common case. Same result as below, without
-- decoding the record.
if not stored or string.byte(stored) == 148 then
  local _, version, _, last, seen = 0, 1, 0, 0, now
  if stored then _, version, _, last, seen = cmsgpack.unpack_limit(stored, 4, 1) end
  if version == 1 then
    now = math.max(now, seen)
    if now > not_after then return reply('expired', now) end
    local fence, ends = math.max(last + 1, now), now + ttl
    local life = string.format('%.0f', math.ceil((math.max(fence, ends) - now) / 1000) + 86400000)
    redis.call('SET', KEYS[1], '\149' .. cmsgpack.pack(1, capacity, fence, now,
      { { ticket, lock_id, exclusive, fence, now, ends, who } }), 'PX', life)
    return '\148' .. cmsgpack.pack('granted', fence, now, ends)
  end
end
local asking = ticket
-- include: _gate.lua

local holders, queue = gate[HOLDERS], gate[QUEUE]

for _, g in ipairs(gate[GONE]) do
  if g[1] == ticket then return done('expired', now) end
end

if #holders == 0 and #queue == 0 then
  gate[CAPACITY] = capacity
elseif gate[CAPACITY] ~= capacity then
  return done('disagree', gate[CAPACITY])
end

local function grant(exclusively)
  local fence = math.max(gate[LAST] + 1, now)
  gate[LAST] = fence
  holders[#holders + 1] = { ticket, lock_id, exclusively, fence, now, now + ttl, who }
  return done('granted', fence, now, now + ttl)
end

local function queued(index)
  local ends, position = nil, 0
  for i = 1, index - 1 do
    if queue[i][OFFERED] ~= LAPSED then position = position + 1 end
  end
  for _, h in ipairs(holders) do ends = math.min(ends or h[UNTIL], h[UNTIL]) end
  for _, w in ipairs(queue) do
    if w[OFFERED] > 0 then ends = math.min(ends or w[OFFERED], w[OFFERED]) end
  end
  local after = ends - now + SLACK + position * STAGGER
  return done('queued', position, math.min(after, RECHECK), #holders + #queue, first_holder())
end

-- A resend after a lost reply. It may arrive late, so it never shortens the lease.
for _, h in ipairs(holders) do
  if h[TICKET] == ticket then
    h[UNTIL] = math.max(h[UNTIL], now + ttl)
    return done('granted', h[FENCE], h[SINCE], h[UNTIL])
  end
end

for i, w in ipairs(queue) do
  if w[TICKET] == ticket then
    if w[OFFERED] ~= 0 then
      table.remove(queue, i)
      return grant(w[EXCLUSIVE]) -- in the mode of the offer, not of the command
    end
    return queued(i)
  end
end

local waiting = false
for _, w in ipairs(queue) do waiting = waiting or w[OFFERED] == 0 end
if not waiting then
  local count, taken_exclusively = taken()
  if fits(count, taken_exclusively, exclusive) then return grant(exclusive) end
end

if max_waiters == 0 then return done('held', #holders + #queue, first_holder()) end
if #queue >= max_waiters then return done('full', #queue) end
queue[#queue + 1] = { ticket, lock_id, exclusive, inbox, now, now + LIFE, 0, who }
return queued(#queue)
