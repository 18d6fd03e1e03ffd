-- Purpose: release a lease if it is the caller's.
-- KEYS: 1 = the gate's record
-- ARGV: 1 = a msgpack array of:
--         not_after   the engine time in µs after which the command has no effect
--         ticket      the ticket that holds the lease; empty: lock_id identifies the lease
--         lock_id     the id that users see for the lease; used if ticket is empty
--         fence       the fence of the caller's lease; the record's last fence becomes at least this
--         gone_until  until this engine time in µs a delayed copy of the ticket's Acquire is refused; 0: no copy
--                     is in flight
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'released', lock_id}  the caller's lease, with this lock_id, is released
--         {'absent'}  nothing to release: the gate has no holder
--         {'foreign', holders}  not released: others hold the gate
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs
--       holders: a list with the first holder {ticket, lock_id, exclusive, fence, since, until, who}, or empty

local _, not_after, ticket, lock_id, fence, gone_until = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _clock.lua
-- include: _write.lua

-- Fast path for the common case: the gate's only lease is released while the queue is empty. The record is then a
-- msgpack array of five items (first byte 149). Record and reply are those that the general path below would produce.
if stored and string.byte(stored) == 149 and ticket ~= '' and gone_until == 0 then
  local _, version, capacity, last, seen, holders = cmsgpack.unpack_limit(stored, 5, 1)
  if version == 1 and #holders == 1 and holders[1][1] == ticket then
    now = math.max(now, seen)
    if now > not_after then return reply('expired', now) end
    if holders[1][6] > now then
      last = math.max(last, fence)
      local life = string.format('%.0f', math.ceil((math.max(last, now) - now) / 1000) + 86400000)
      return write_record('\148' .. cmsgpack.pack(1, capacity, last, now), life)
        or '\146' .. cmsgpack.pack('released', holders[1][2])
    end
  end
end
local sender = ''
-- include: _gate.lua

gate[LAST] = math.max(gate[LAST], fence)
if ticket ~= '' then add_tombstone(ticket, gone_until) end
for i, h in ipairs(gate[HOLDERS]) do
  if (ticket ~= '' and h[TICKET] == ticket) or (ticket == '' and h[LOCK_ID] == lock_id) then
    table.remove(gate[HOLDERS], i)
    return finish('released', h[LOCK_ID])
  end
end
if #gate[HOLDERS] > 0 then return finish('foreign', first_holder()) end
return finish('absent')
