-- Purpose: give back a cost. `at` above 0: the cost was reserved for the time `at`. `at` 0: it was charged just now.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = msgpack array: not_after (the engine's time in µs after which the command is rejected), algorithm (its id,
--          see ALGORITHMS in rates.py), rules (one per rate: {limit, window in ms, burst, gain, price}, see Rule in
--          algorithms.py), cost to refund, at (time of the reservation in µs; 0: the cost was charged just now)
--       2 = test clock: the time in µs (absent in production)
-- Returns: {'done'} | {'expired', now}: the command arrived after not_after (now: the engine's time in µs)

local _, not_after, algorithm, rules, cost, at = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _clock.lua
-- include: _limit.lua

if stored then
  for i, rule in ipairs(rules) do refund(marks[i], rule, cost, at) end
  write(true)
end
return reply('done')
