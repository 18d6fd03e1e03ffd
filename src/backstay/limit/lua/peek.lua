-- Purpose: return the reply that a hit would get, without charging.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = {not_after, law = algorithm_id, rules, cost}; 2 = test clock
-- Returns: {admitted, at, rate, count, remaining, reset, delay} | {denied, at, rate, count, remaining, reset, retry} |
--          {expired, now}

local _, not_after, law, rules, cost = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _limit.lua

local at, rate = all_free_at(cost)
if at > now then return denied(at, rate) end
return admitted(now)
