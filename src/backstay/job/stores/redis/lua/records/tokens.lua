-- Purpose: read all access tokens that have not expired.
-- KEYS: 1 = the first shard; 2 = nothing
-- ARGV: 1 = test clock
-- Returns: {created, expires, record}, …

-- include: _shard.lua

local found, all = {}, redis.call('HGETALL', SHARD .. 'tokens')
for i = 2, #all, 2 do
  local _, expires = struct.unpack('>I8I8', all[i])
  if expires == 0 or expires > now then found[#found + 1] = all[i] end
end
return found
