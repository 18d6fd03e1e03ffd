-- Purpose: take up to n from a hint's counter. Never makes a key, never leaves one without an end.
--   An exhausted counter stays 0 for the rest of its life, and denies. Where there is none, everybody may come.
-- KEYS[1]  the counter: <prefix>:hint:<hint id>
-- ARGV[1]  n    ARGV[2]  the life in ms of a counter whose maker gave it none
-- Returns  how many were taken, 0 to n; n when there is no counter, or none that can be read

local wanted, life = tonumber(ARGV[1]), tonumber(ARGV[2])

local stored = redis.call('GET', KEYS[1])
if not stored then
    return wanted
end
if redis.call('PTTL', KEYS[1]) < 0 then
    redis.call('PEXPIRE', KEYS[1], life)
end
-- Up to 15 digits a number is exact here; what is no number is a stranger's, and left alone.
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
