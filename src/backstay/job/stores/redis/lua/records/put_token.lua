-- Purpose: store an access token of the server, and delete expired tokens.
-- KEYS: 1 = the first shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the token's id
--       3 = time in µs at which the token expires (0: never)
--       4 = a `TokenRecord` as msgpack
-- Returns: 1

-- include: _shard.lua

local all = redis.call('HGETALL', SHARD .. 'tokens')
for i = 1, #all, 2 do
  local _, expires = struct.unpack('>I8I8', all[i + 1])
  if expires > 0 and expires <= now then redis.call('HDEL', SHARD .. 'tokens', all[i]) end
end
redis.call('HSET', SHARD .. 'tokens', ARGV[2], struct.pack('>I8I8', now, tonumber(ARGV[3])) .. ARGV[4])
return 1
