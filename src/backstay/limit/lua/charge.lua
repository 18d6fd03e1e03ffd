-- Purpose: charge hits that a process admitted while the engine was unavailable. Each rate has its own cost, which is
-- charged even above the limit.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = msgpack array: not_after (the engine's time in µs after which the command is rejected), algorithm (its id,
--          see ALGORITHMS in rates.py), rules (one per rate: {limit, window in ms, burst, gain, price}, see Rule in
--          algorithms.py), costs (what to charge to each rate)
--       2 = test clock: the time in µs (absent in production)
-- Returns: {'done'} | {'expired', now}: the command arrived after not_after (now: the engine's time in µs)

local _, not_after, algorithm, rules, costs = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _limit.lua

for i, rule in ipairs(rules) do charge(marks[i], rule, costs[i], now) end
write()
return reply('done')
