-- Purpose: define SHARD, the prefix of all keys of the script's shard, and `now`, the time in µs. SHARD is KEYS[1], the
-- key of the shard's meta record, without its last four characters ('meta'). ARGV[1] is the time of a test clock in µs,
-- or '' in production, where `now` is the server's time.
local HINT_TTL = '60000' -- TTL of an announcement's counter, in ms
local SHARD = string.sub(KEYS[1], 1, -5)
-- Added to each TTL, in ms. Redis expires keys by its own clock, not by a test clock, so the keys of a test must
-- outlive the test.
local extra_ttl = ARGV[1] ~= '' and 86400000 or 0
local now
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
