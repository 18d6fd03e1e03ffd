-- Purpose: count a hit in its window, admitted or not, and set the counter's TTL to one window.
-- KEYS: 1 = the counter of the window
-- ARGV: 1 = {not_after, window, bucket, cost}; 2 = test clock
-- Returns: {counted, now, count} | {expired, now}

local _, not_after, window, bucket, cost = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _window.lua

local count = redis.call('INCRBY', KEYS[1], string.format('%.0f', cost))
redis.call('EXPIRE', KEYS[1], string.format('%.0f', window / 1000))
return reply('counted', now, count)
