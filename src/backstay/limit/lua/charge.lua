-- Purpose: charge what was admitted elsewhere: one cost for each rate, whether there is room or not.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = {not_after, law = algorithm_id, rules, costs}; 2 = test clock
-- Returns: {done} | {expired, now}

local _, not_after, law, rules, costs = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _limit.lua

for i, rule in ipairs(rules) do charge(marks[i], rule, costs[i], now) end
write()
return reply('done')
