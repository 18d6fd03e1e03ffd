-- Purpose: return the time until a job becomes due or a lease expires.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock
-- Returns: µs, or false

-- include: _shard.lua
-- include: _record.lua
-- include: _moves.lua
-- include: _time.lua

local soonest = next_in()
return soonest and digits(soonest)
