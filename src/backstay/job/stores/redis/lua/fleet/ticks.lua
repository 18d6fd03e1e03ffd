-- Purpose: read when cron entries last ticked. An unknown entry is stored as ticked now.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); from 2 on = names of cron entries
-- Returns: an array of two lists:
--          1. for each name: time of the entry's last tick in µs, or false if the entry was unknown
--          2. jobs in `cron-outbox`: jobs of earlier ticks that are perhaps not yet enqueued in their own shards: job's
--            id, the job as tick.lua stored it, …

-- include: _shard.lua

local times = {}
for i = 2, #ARGV do
  times[i - 1] = redis.call('HGET', SHARD .. 'cron', ARGV[i])
  if not times[i - 1] then redis.call('HSET', SHARD .. 'cron', ARGV[i], string.format('%.0f', now)) end
end
return { times, redis.call('HGETALL', SHARD .. 'cron-outbox') }
