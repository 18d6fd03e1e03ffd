-- Purpose: reset the key to idle, even while a call runs, and advance the fence.
-- KEYS: 1 = the record of the idempotency key
--       2 = the stored outcome of its call
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'forgotten', was}  the key is idle; was: its phase before: 'idle', 'running', 'completed' or 'failed'
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs

local _, not_after = cmsgpack.unpack_limit(ARGV[1], 1, 1)
-- include: _clock.lua
-- include: _write.lua
-- include: _entry.lua

local was = entry[PHASE]
reset_to_idle()
entry[LAST] = math.max(entry[LAST] + 1, now)
wake_next()
redis.call('DEL', KEYS[2])
return finish('forgotten', was)
