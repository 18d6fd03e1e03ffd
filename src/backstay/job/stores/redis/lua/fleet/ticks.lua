-- Purpose: when cron entries last ticked. A new one is remembered as of now.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; then names
-- Returns: {for each: when, or false: never; ticks whose job lives elsewhere and may not have been made: job, parts, …}

-- include: _shard.lua

local times = {}
for i = 2, #ARGV do
  times[i - 1] = redis.call('HGET', SHARD .. 'cron', ARGV[i])
  if not times[i - 1] then redis.call('HSET', SHARD .. 'cron', ARGV[i], string.format('%.0f', now)) end
end
return { times, redis.call('HGETALL', SHARD .. 'ticking') }
