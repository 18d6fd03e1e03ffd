-- Purpose: read the next events of a run.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the run's id
--       3 = number of the last event already read
--       4 = largest number of events to return
-- Returns: list of encoded events

local SHARD = string.sub(KEYS[1], 1, -5)
local after, limit = tonumber(ARGV[3]), tonumber(ARGV[4])

if limit <= 0 then return {} end
return redis.call('LRANGE', SHARD .. 'run-events:' .. ARGV[2], after, after + limit - 1)
