-- Purpose: retry, fail or cancel jobs whose lease expired; make due jobs pending.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; 3 = number of jobs at most
-- Returns: {ready: type, number, …; jobs not registered with a blocker of another shard: '<job> <chain>', …;
--          outbox: job, chain, value, …}

-- include: _shard.lua
local limit = tonumber(ARGV[3])
-- include: _record.lua
-- include: _moves.lua
-- include: _time.lua
-- include: _cross_shard.lua

reap(limit)
make_due(limit)
settle()
flush(ARGV[2])
return { made_ready(), unregistered_since(now - GRACE), outbox }
