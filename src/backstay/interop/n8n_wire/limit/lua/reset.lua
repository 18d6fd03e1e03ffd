-- Purpose: delete the counter of a window.
-- KEYS: 1 = the counter of the window
-- ARGV: 1 = {not_after, window, bucket}; 2 = test clock
-- Returns: {counted, now, count} | {expired, now}

local _, not_after, window, bucket = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _window.lua

redis.call('DEL', KEYS[1])
return reply('counted', now, 0)
