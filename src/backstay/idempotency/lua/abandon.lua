-- Purpose: remove a ticket (one attempt to run the call) that runs or waits. No outcome is stored.
-- KEYS: 1 = the record of the idempotency key
--       2 = the stored outcome of its call
-- ARGV: 1 = a msgpack array of:
--         not_after   the engine time in µs after which the command has no effect
--         ticket      the attempt's id
--         gone_until  until this engine time in µs a delayed copy of the ticket's Begin is refused; 0: no copy is
--                     in flight
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'abandoned', was}  the ticket is gone; was: its state before: 'running', 'waiting' or 'absent'
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs

local _, not_after, ticket, gone_until = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _write.lua
-- include: _entry.lua

local was = 'absent'
for _, w in ipairs(entry[WAITERS]) do
  if w[1] == ticket then was = 'waiting' end
end
-- Add a tombstone, which refuses delayed copies of this ticket's Begin until `gone_until`: a copy must not bring the
-- removed ticket back.
if gone_until > now then
  entry[GONE] = filter(entry[GONE], function(g) return g[1] ~= ticket end)
  entry[GONE][#entry[GONE] + 1] = { ticket, gone_until }
end
entry[WAITERS] = filter(entry[WAITERS], function(w) return w[1] ~= ticket end)
if entry[PHASE] == 'running' and entry[TICKET] == ticket then
  was = 'running'
  reset_to_idle()
  wake_next()
end
return finish('abandoned', was)
