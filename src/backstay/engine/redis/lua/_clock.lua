-- Purpose: set two locals for the including script: `now`, the server's clock in µs, and `stored`, the encoded record
--   under KEYS[1], or false if there is none. Also define reply().
-- If ARGV[2] is present, it is the time of a test clock in µs and replaces the server's clock. In production it is
--   absent.
local now
if ARGV[2] then
  now = tonumber(ARGV[2])
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local stored = redis.call('GET', KEYS[1])

-- Encode a reply: a msgpack array of the arguments. The first byte is the array's header: 144 + the number of items.
local function reply(...)
  return string.char(144 + select('#', ...)) .. cmsgpack.pack(...)
end
