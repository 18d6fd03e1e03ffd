-- Purpose: read the time in µs from the server's clock. ARGV[2] is a test clock; it is absent in production.
local now
if ARGV[2] then
  now = tonumber(ARGV[2])
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- Encode a reply: a msgpack array header, then its items.
local function reply(...)
  return string.char(144 + select('#', ...)) .. cmsgpack.pack(...)
end
