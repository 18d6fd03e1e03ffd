-- Purpose: charge a cost now, or reserve it for a time within the next `wait` µs.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = msgpack array: not_after (the engine's time in µs after which the command is rejected), algorithm (its id,
--          see ALGORITHMS in rates.py), rules (one per rate: {limit, window in ms, burst, gain, price}),
--          cost of the hit, wait (how far in the future the cost may be reserved, in µs)
--       2 = test clock: the time in µs (absent in production)
-- Returns: {'admitted', at, rate, count, remaining, reset, delay}: at is the time at which the cost is charged, delay
--          is the time until then; the other values describe the rate with the least remaining
--          | {'denied', at, rate, count, remaining, reset, retry}: at is the engine's time now, retry is the time until
--          the cost fits; the other values describe the rate that blocks longest
--          | {'expired', now}: the command arrived after not_after (now: the engine's time)
--          rate: index of the rate, from 0. count: cost in use. remaining: cost that still fits.
--          reset: time until the whole rate is free. All times are in µs.

local _, not_after, algorithm, rules, cost, wait = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _now.lua

-- Fast path for the common case: a limit with one rate, and a hit that is admitted. The result is the same as below.
-- include: _fast.lua

local stored = redis.call('GET', KEYS[1])
-- include: _limit.lua

local at, rate = all_free_at(cost)
if at - now > wait then return reply_denied(at, rate) end
for i, rule in ipairs(rules) do charge(marks[i], rule, cost, at) end
write()
return reply_admitted(at)
