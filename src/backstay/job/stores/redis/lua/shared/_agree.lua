-- Purpose: compare the caller's number of shards (ARGV[2]) with the stored one, which the first call of a namespace sets.
-- A server that lost its data stores it anew. Also reads the last allocated fence (false: none).
local agreed, last_fence = unpack(redis.call('HMGET', KEYS[1], 'shards', 'fence'))
if agreed ~= ARGV[2] then
  if agreed then return redis.error_reply('SHARDS ' .. agreed) end
  redis.call('HSET', KEYS[1], 'shards', ARGV[2])
end
