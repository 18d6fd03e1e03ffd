-- Purpose: into how many shards the jobs of this namespace are divided is fixed with the first one. ARGV[2] says what the
-- caller believes. A server that lost everything learns it anew.
local agreed = redis.call('HGET', KEYS[1], 'shards')
if agreed ~= ARGV[2] then
  if agreed then return redis.error_reply('SHARDS ' .. agreed) end
  redis.call('HSET', KEYS[1], 'shards', ARGV[2])
end
