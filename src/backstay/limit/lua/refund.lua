-- Purpose: refund a cost: what was reserved for the time `at`, or any.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = {not_after, law = algorithm_id, rules, cost, at}; at 0: any; 2 = test clock
-- Returns: {done} | {expired, now}

local _, not_after, law, rules, cost, at = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _clock.lua
-- include: _limit.lua

if stored then
  for i, rule in ipairs(rules) do refund(marks[i], rule, cost, at) end
  write()
end
return reply('done')
