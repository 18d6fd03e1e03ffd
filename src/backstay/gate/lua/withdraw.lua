-- Purpose: remove a ticket in any state: held, offered or queued.
-- KEYS: 1 = the gate's record
-- ARGV: 1 = a msgpack array of:
--         not_after   the engine time in µs after which the command has no effect
--         ticket      the ticket to remove
--         gone_until  until this engine time in µs a delayed copy of the ticket's Acquire is refused; 0: no copy
--                     is in flight
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'withdrawn', was, holders}  the ticket is gone
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs
--       was: the ticket's state before: 'held', 'offered', 'queued', or 'absent' if the gate did not have the ticket
--       holders: a list with the first holder {ticket, lock_id, exclusive, fence, since, until, who}, or empty;
--         since, until: µs; who: the holder as {execution_id, workflow_id, workflow_name}

local _, not_after, ticket, gone_until = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _write.lua
local sender = ''
-- include: _gate.lua

local was = 'absent'
for _, h in ipairs(gate[HOLDERS]) do
  if h[TICKET] == ticket then was = 'held' end
end
for _, w in ipairs(gate[QUEUE]) do
  if w[TICKET] == ticket then was = w[OFFERED] > 0 and 'offered' or 'queued' end
end
add_tombstone(ticket, gone_until)
gate[HOLDERS] = filter(gate[HOLDERS], function(h) return h[TICKET] ~= ticket end)
gate[QUEUE] = filter(gate[QUEUE], function(w) return w[TICKET] ~= ticket end)
return finish('withdrawn', was, first_holder())
