-- Purpose: return the time until the first scheduled job is due or the first lease expires.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
-- Returns: µs from now; false if there is no scheduled job and no lease

-- include: _shard.lua
-- include: _record.lua
-- include: _transitions.lua
-- include: _reap.lua

local soonest = find_next_due()
return soonest and format_int(soonest)
