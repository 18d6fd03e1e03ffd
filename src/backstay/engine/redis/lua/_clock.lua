-- Purpose: set `now` (µs, the server's clock) and `stored` (the record, false if there is none) for the including script.
-- ARGV[2] is a test clock; it is absent in production.
local now
if ARGV[2] then
  now = tonumber(ARGV[2])
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local stored = redis.call('GET', KEYS[1])

-- Encodes a reply: a msgpack array (header, then items).
local function reply(...)
  return string.char(144 + select('#', ...)) .. cmsgpack.pack(...)
end
