-- Purpose: count a hit in its window, whether the limit admits it or not, and set the counter's TTL to the length of a
--   window.
-- KEYS: 1 = the counter of one window
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--         window     the length of the window in ms
--         bucket     the number of the window since the epoch
--         cost       how much the hit adds to the counter
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'counted', now, count}  the engine time in µs, and the counter with this hit
--         {'expired', now}  nothing was changed: not_after has passed, or the window is not the current one

local _, not_after, window, bucket, cost = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _window.lua

local count = redis.call('INCRBY', KEYS[1], string.format('%.0f', cost))
redis.call('EXPIRE', KEYS[1], string.format('%.0f', window / 1000))
return reply('counted', now, count)
