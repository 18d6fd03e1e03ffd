-- Purpose: delete the counter of a window.
-- KEYS: 1 = the counter of the window
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--         window     the length of the window in ms
--         bucket     the number of the window since the epoch
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'counted', now, 0}  the counter is deleted; now: the engine time in µs
--         {'expired', now}  nothing was changed: not_after has passed, or the window is not the current one

local _, not_after, window, bucket = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _window.lua

redis.call('DEL', KEYS[1])
return reply('counted', now, 0)
