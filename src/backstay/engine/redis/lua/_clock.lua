-- Purpose: the time of this script, in µs of the server's clock, and the record as stored (false: none).
-- ARGV[2] is a test clock; in service it is absent.
local now
if ARGV[2] then
  now = tonumber(ARGV[2])
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local stored = redis.call('GET', KEYS[1])

-- A reply is a msgpack array: its header, then its items.
local function reply(...)
  return string.char(144 + select('#', ...)) .. cmsgpack.pack(...)
end
