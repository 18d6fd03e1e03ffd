-- Purpose: read the counter of a window. Changes nothing.
-- KEYS: 1 = the counter of one window
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--         window     the length of the window in ms
--         bucket     the number of the window since the epoch
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'counted', now, count}  the engine time in µs, and the counter; 0: there is none
--         {'expired', now}  nothing was changed: not_after has passed, or the window is not the current one

local _, not_after, window, bucket = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _window.lua

return reply('counted', now, stored and tonumber(stored) or 0)
