-- Purpose: read the last tick of cron entries. A new entry is stored as ticked now.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; then names
-- Returns: {for each: time of its last tick, or false: never; notes of jobs of other shards that may not be enqueued yet:
--          job, encoded job, …}

-- include: _shard.lua

local times = {}
for i = 2, #ARGV do
  times[i - 1] = redis.call('HGET', SHARD .. 'cron', ARGV[i])
  if not times[i - 1] then redis.call('HSET', SHARD .. 'cron', ARGV[i], string.format('%.0f', now)) end
end
return { times, redis.call('HGETALL', SHARD .. 'ticking') }
