-- Purpose: take up to n from the counter of an announcement of new jobs. The counter holds how many more jobs workers
--   may claim in response to the announcement.
--   The script never creates a key. A counter without a TTL gets one. A counter that has reached 0 stays 0 until its
--   TTL ends. If there is no counter, every worker may respond.
-- KEYS: 1 = the counter: <prefix>:hint:<hint id>
-- ARGV: 1 = n, how many to take at most
--       2 = the TTL in ms for a counter that has none
-- Returns: how many were taken, 0 to n; n if the counter is missing or not a number

local wanted, life = tonumber(ARGV[1]), tonumber(ARGV[2])

local stored = redis.call('GET', KEYS[1])
if not stored then
    return wanted
end
if redis.call('PTTL', KEYS[1]) < 0 then
    redis.call('PEXPIRE', KEYS[1], life)
end
-- Lua numbers are exact up to 15 digits. A value that is longer or not a number was written by another program: it is
-- left unchanged.
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
