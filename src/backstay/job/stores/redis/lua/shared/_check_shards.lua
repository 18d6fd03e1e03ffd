-- Purpose: reject a caller whose number of shards (ARGV[2]) differs from the stored number. The first call of a
-- namespace stores the number. Also define `last_fence`, the last fence given to a lease (false: none yet).
local stored_shards, last_fence = unpack(redis.call('HMGET', KEYS[1], 'shards', 'fence'))
if stored_shards ~= ARGV[2] then
  if stored_shards then return redis.error_reply('SHARDS ' .. stored_shards) end
  redis.call('HSET', KEYS[1], 'shards', ARGV[2])
end
