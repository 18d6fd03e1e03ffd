-- Purpose: into how many shards the jobs of this namespace are divided is fixed with the first one. ARGV[2] says what the
-- caller believes. A server that lost everything learns it anew. With it comes the last fence that was given (false: none).
local agreed, last_fence = unpack(redis.call('HMGET', KEYS[1], 'shards', 'fence'))
if agreed ~= ARGV[2] then
  if agreed then return redis.error_reply('SHARDS ' .. agreed) end
  redis.call('HSET', KEYS[1], 'shards', ARGV[2])
end
