-- Purpose: define SHARD, the key prefix of the script's shard, and `now`, the server's time in µs. Every key of a shard
-- begins with the hash tag of KEYS[1], the shard's own record. ARGV[1] is a test clock; it is empty in production.
local HINT_LIFE = '60000' -- lifetime of a hint's counter, in ms
local SHARD = string.sub(KEYS[1], 1, -5)
-- Redis expires keys by the server's clock, not by the test clock: with a test clock, add this much to each TTL (ms).
local spare = ARGV[1] ~= '' and 86400000 or 0
local now
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
