-- Purpose: advance a ticket, the id of one attempt to acquire. Depending on its state the ticket enters the queue,
--   refreshes its place in the queue, accepts an offer, or gets its grant again.
-- KEYS: 1 = the gate's record
-- ARGV: 1 = a msgpack array of:
--         not_after    the engine time in µs after which the command has no effect
--         ticket       the id of this attempt
--         lock_id      the id of the lease, as users see it
--         exclusive    true: wants to be the only holder
--         capacity     the most holders at a time; 0: no limit
--         ttl          the length of the lease in µs
--         inbox        the hub channel to which hints for this ticket are sent
--         max_waiters  join the queue only while it is shorter than this; 0: never join it
--         who          the caller: {execution_id, workflow_id, workflow_name}
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'granted', fence, since, until}  the ticket holds a lease from `since` to `until` (µs)
--         {'queued', position, recheck_after, count, holders}  wait, and send the command again after recheck_after µs
--         {'held', count, holders}  not granted, and not queued because max_waiters is 0
--         {'full', waiters}  not queued: the queue already has that many tickets
--         {'disagree', capacity}  refused: the gate is in use with this other capacity
--         {'expired', now}  refused: not_after has passed, or the ticket was withdrawn; now: engine time in µs
--       position: how many tickets in the queue are ahead, not counting those that did not accept an offer in time
--       count: the number of holders and queued tickets together
--       holders: a list with the first holder {ticket, lock_id, exclusive, fence, since, until, who}, or empty

local _, not_after, ticket, lock_id, exclusive, capacity, ttl, inbox, max_waiters, who =
  cmsgpack.unpack_limit(ARGV[1], 9, 1)
-- include: _clock.lua
-- include: _write.lua

-- Fast path for the common case: the gate is idle. Its record is then absent or a msgpack array of four items (first
-- byte 148), without holders and waiters. Record and reply are those that the general path below would produce.
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

-- Fast path for a newcomer that is refused, as in `_refuse_at_once` of machine.py: time was applied to the record less
-- than a second ago, its holders leave no room, and its queue has max_waiters tickets. Only the record's first five
-- items are decoded. The sixth is the queue: a msgpack array whose length follows from its first bytes.
if stored and (string.byte(stored) == 150 or string.byte(stored) == 151) then
  local readable, at, version, limit, _, seen, holders = pcall(cmsgpack.unpack_limit, stored, 5, 1)
  if readable and version == 1 and type(holders) == 'table' then
    local time = math.max(now, seen)
    local kind, high, low = string.byte(stored, at + 1, at + 3)
    local waiters = 0
    if kind == 220 then
      waiters = high * 256 + low
    elseif kind and kind > 144 and kind < 160 then
      waiters = kind - 144
    end
    local full = #holders > 0 and (exclusive or (capacity > 0 and #holders >= capacity))
    local ended = false
    for _, h in ipairs(holders) do
      full = full or h[3]
      ended = ended or h[6] <= time
    end
    -- Whether the ticket holds a lease, waits or has a tombstone. Its text may also be part of another field.
    local function is_known()
      if not string.find(stored, ticket, 1, true) then return false end
      local record = cmsgpack.unpack(stored)
      for i = 5, 7 do
        for _, item in ipairs(record[i] or {}) do
          if item[1] == ticket then return true end
        end
      end
      return false
    end
    if
      full and not ended and limit == capacity and waiters > 0 and waiters >= max_waiters
      and time - seen < 1000000 and time <= not_after and not is_known()
    then
      if max_waiters == 0 then return reply('held', #holders + waiters, { holders[1] }) end
      return reply('full', waiters)
    end
  end
end
local sender = ticket
-- include: _gate.lua

local holders, queue = gate[HOLDERS], gate[QUEUE]

for _, g in ipairs(gate[GONE]) do
  if g[1] == ticket then return finish('expired', now) end
end

if #holders == 0 and #queue == 0 then
  gate[CAPACITY] = capacity
elseif gate[CAPACITY] ~= capacity then
  return finish('disagree', gate[CAPACITY])
end

local function grant(exclusively)
  local fence = math.max(gate[LAST] + 1, now)
  gate[LAST] = fence
  holders[#holders + 1] = { ticket, lock_id, exclusively, fence, now, now + ttl, who }
  return finish('granted', fence, now, now + ttl)
end

local function reply_queued(index)
  local ends, position = nil, 0
  for i = 1, index - 1 do
    if queue[i][OFFERED] ~= LAPSED then position = position + 1 end
  end
  for _, h in ipairs(holders) do ends = math.min(ends or h[UNTIL], h[UNTIL]) end
  for _, w in ipairs(queue) do
    if w[OFFERED] > 0 then ends = math.min(ends or w[OFFERED], w[OFFERED]) end
  end
  local after = ends - now + SLACK + position * STAGGER
  return finish('queued', position, math.min(after, RECHECK), #holders + #queue, first_holder())
end

-- If the ticket holds a lease already, this is a resend after a lost reply. A resend never shortens the
-- lease.
for _, h in ipairs(holders) do
  if h[TICKET] == ticket then
    if (h[TTL_NUMBER] or 0) == 0 then h[UNTIL] = math.max(h[UNTIL], now + ttl) end
    return finish('granted', h[FENCE], h[SINCE], h[UNTIL])
  end
end

for i, w in ipairs(queue) do
  if w[TICKET] == ticket then
    if w[OFFERED] ~= 0 then
      table.remove(queue, i)
      return grant(w[EXCLUSIVE]) -- the offer decides whether it is exclusive
    end
    return reply_queued(i)
  end
end

local waiting = false
for _, w in ipairs(queue) do waiting = waiting or w[OFFERED] == 0 end
if not waiting then
  local count, taken_exclusively = count_taken()
  if fits(count, taken_exclusively, exclusive) then return grant(exclusive) end
end

if max_waiters == 0 then return finish('held', #holders + #queue, first_holder()) end
if #queue >= max_waiters then return finish('full', #queue) end
queue[#queue + 1] = { ticket, lock_id, exclusive, inbox, now, now + LIFE, 0, who }
return reply_queued(#queue)
