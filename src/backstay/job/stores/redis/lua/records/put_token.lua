-- Purpose: store an access token of the server. Deletes expired ones.
-- KEYS: 1 = the first shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = token's id; 3 = when it expires (0: never); 4 = its record (msgpack)
-- Returns: 1

-- include: _shard.lua

local all = redis.call('HGETALL', SHARD .. 'tokens')
for i = 1, #all, 2 do
  local _, expires = struct.unpack('>I8I8', all[i + 1])
  if expires > 0 and expires <= now then redis.call('HDEL', SHARD .. 'tokens', all[i]) end
end
redis.call('HSET', SHARD .. 'tokens', ARGV[2], struct.pack('>I8I8', now, tonumber(ARGV[3])) .. ARGV[4])
return 1
