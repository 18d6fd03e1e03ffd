-- Purpose: take up to n from a hint's counter. Never creates a key, and never leaves one without a TTL.
--   An exhausted counter stays 0 until its TTL ends and returns 0. Without a counter every worker may respond.
-- KEYS[1]  the counter: <prefix>:hint:<hint id>
-- ARGV[1]  n    ARGV[2]  the TTL in ms for a counter that was created without one
-- Returns  how many were taken, 0 to n; n if the counter is missing or unreadable

local wanted, life = tonumber(ARGV[1]), tonumber(ARGV[2])

local stored = redis.call('GET', KEYS[1])
if not stored then
    return wanted
end
if redis.call('PTTL', KEYS[1]) < 0 then
    redis.call('PEXPIRE', KEYS[1], life)
end
-- Lua numbers are exact up to 15 digits. A value that is not a number was written by another program and stays.
if #stored > 15 or not string.find(stored, '^%-?%d+$') then
    return wanted
end
local left = tonumber(stored)
if left <= 0 then
    return 0
end
local taken = math.min(left, wanted)
redis.call('SET', KEYS[1], string.format('%.0f', left - taken), 'KEEPTTL')
return taken
