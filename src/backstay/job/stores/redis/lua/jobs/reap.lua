-- Purpose: retry, fail or cancel jobs whose lease expired; make due jobs pending.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = prefix of the Pub/Sub channels' names
--       3 = largest number of jobs to reap, and of jobs to make pending
-- Returns: an array of three lists:
--          1. jobs that became pending, by type: type, count, type, count, …
--          2. jobs to register with a blocker in another shard: '<id of the waiting job> <id of the chain it waits
--            for>', …
--          3. outbox entries written by this call: id of a waiting job of another shard, the ended chain's id,
--            '+<result>' (success) or '-' (no success); …

-- include: _shard.lua
-- include: _when_full.lua
local limit = tonumber(ARGV[3])
-- include: _record.lua
-- include: _transitions.lua
-- include: _reap.lua
-- include: _cross_shard.lua

reap(limit)
make_due(limit)
resolve_all()
flush(ARGV[2])
return { list_ready(), list_unregistered(now - REGISTRATION_GRACE), outbox }
