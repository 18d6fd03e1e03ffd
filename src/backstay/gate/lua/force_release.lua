-- Purpose: remove all holders and advance the fence.
-- KEYS: 1 = the gate's record
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'removed', fence, holders}  the new fence, and all holders that were removed
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs
--       A holder is {ticket, lock_id, exclusive, fence, since, until, who}.

local _, not_after = cmsgpack.unpack_limit(ARGV[1], 1, 1)
-- include: _clock.lua
-- include: _write.lua
local sender = ''
-- include: _gate.lua

local removed = gate[HOLDERS]
gate[HOLDERS] = {}
gate[LAST] = math.max(gate[LAST] + 1, now)
return finish('removed', gate[LAST], removed)
