-- Purpose: jobs whose lease ran out go back, or to the dead letters; what is due becomes pending.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; 3 = how many at most
-- Returns: {ready: type, number, …; who is not registered with a blocker elsewhere: '<job> <chain>', …;
--          the outbox: job, chain, value, …}

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
