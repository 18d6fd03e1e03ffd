-- Purpose: the shard that a script works in and the time there, in µs of the server's clock. Every key of a shard begins
-- with its hash tag, which KEYS[1] (the shard's own record) brings. ARGV[1] is a test clock; in service it is empty.
local HINT_LIFE = '60000' -- of a hint's counter, in ms
local SHARD = string.sub(KEYS[1], 1, -5)
-- Keys end by the server's clock, whatever a test clock says: so much later, in ms.
local spare = ARGV[1] ~= '' and 86400000 or 0
local now
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
