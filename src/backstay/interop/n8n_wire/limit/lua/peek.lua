-- Purpose: read the counter of a window. Changes nothing.
-- KEYS: 1 = the counter of the window
-- ARGV: 1 = {not_after, window, bucket}; 2 = test clock
-- Returns: {counted, now, count} | {expired, now}

local _, not_after, window, bucket = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _window.lua

return reply('counted', now, stored and tonumber(stored) or 0)
