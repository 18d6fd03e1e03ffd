-- Purpose: remove the leases and the queued tickets of one execution. Other holders and tickets stay.
-- KEYS: 1 = the gate's record
-- ARGV: 1 = a msgpack array of:
--         not_after     the engine time in µs after which the command has no effect
--         execution_id  the execution whose leases and tickets are removed
--         prefix        only those are removed whose ticket starts with this text; empty: all
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'removed', 0, holders}  all holders that were removed; 0 stands for the fence, which did not advance
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs
--       A holder is {ticket, lock_id, exclusive, fence, since, until, who}.

local _, not_after, execution_id, prefix = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _write.lua
local sender = ''
-- include: _gate.lua

local function is_evicted(ticket, who)
  return who[1] == execution_id and string.sub(ticket, 1, #prefix) == prefix
end

local removed = filter(gate[HOLDERS], function(h) return is_evicted(h[TICKET], h[HOLDER_WHO]) end)
gate[HOLDERS] = filter(gate[HOLDERS], function(h) return not is_evicted(h[TICKET], h[HOLDER_WHO]) end)
gate[QUEUE] = filter(gate[QUEUE], function(w) return not is_evicted(w[TICKET], w[WAITER_WHO]) end)
return finish('removed', 0, removed)
