-- Purpose: delete the job of a cron tick from `cron-outbox` after it was enqueued in its own shard.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the job's id
--       3 = the job as tick.lua stored it: a msgpack array of id, record, doc and blockers
-- Returns: 1; 0 if `cron-outbox` does not hold exactly this job

local SHARD = string.sub(KEYS[1], 1, -5)

if redis.call('HGET', SHARD .. 'cron-outbox', ARGV[2]) ~= ARGV[3] then return 0 end
return redis.call('HDEL', SHARD .. 'cron-outbox', ARGV[2])
