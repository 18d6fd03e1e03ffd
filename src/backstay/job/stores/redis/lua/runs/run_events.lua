-- Purpose: read the events of a run after a number.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = run; 3 = number of the last event already read; 4 = number of events at most
-- Returns: events

local SHARD = string.sub(KEYS[1], 1, -5)
local after, limit = tonumber(ARGV[3]), tonumber(ARGV[4])

if limit <= 0 then return {} end
return redis.call('LRANGE', SHARD .. 'run-events:' .. ARGV[2], after, after + limit - 1)
