-- Purpose: read all access tokens that have not expired.
-- KEYS: 1 = the first shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
-- Returns: one string for each token: time of its creation (µs, 8 bytes), time of its expiry (µs, 8 bytes; 0: never),
--            a `TokenRecord` as msgpack

-- include: _shard.lua

local found, all = {}, redis.call('HGETALL', SHARD .. 'tokens')
for i = 2, #all, 2 do
  local _, expires = struct.unpack('>I8I8', all[i])
  if expires == 0 or expires > now then found[#found + 1] = all[i] end
end
return found
