-- Purpose: charge a cost now, or reserve it for a time within `wait`.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = {not_after, law = algorithm_id, rules, cost, wait}; 2 = test clock
-- Returns: {admitted, at, rate, count, remaining, reset, delay} | {denied, at, rate, count, remaining, reset, retry} |
--          {expired, now}

local _, not_after, law, rules, cost, wait = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _now.lua

-- Fast path for a limit with one rate and a hit that is admitted, which is the common case. Same result as below,
-- without decoding marks.
-- include: _fast.lua

local stored = redis.call('GET', KEYS[1])
-- include: _limit.lua

local at, rate = all_free_at(cost)
if at - now > wait then return denied(at, rate) end
for i, rule in ipairs(rules) do charge(marks[i], rule, cost, at) end
write()
return admitted(at)
