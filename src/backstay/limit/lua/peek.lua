-- Purpose: return the reply that a hit would get, without charging.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = msgpack array: not_after (the engine's time in µs after which the command is rejected), algorithm (its id,
--          see ALGORITHMS in rates.py), rules (one per rate: {limit, window in ms, burst, gain, price}, see Rule in
--          algorithms.py),
--          cost of the hit
--       2 = test clock: the time in µs (absent in production)
-- Returns: {'admitted', at, rate, count, remaining, reset, delay}: at is the engine's time now, delay is 0; the
--          other values describe the rate with the least remaining
--          | {'denied', at, rate, count, remaining, reset, retry}: at is the engine's time now, retry is the time until
--          the cost fits; the other values describe the rate that blocks longest
--          | {'expired', now}: the command arrived after not_after (now: the engine's time)
--          rate: index of the rate, from 0. count: cost in use. remaining: cost that still fits.
--          reset: time until the whole rate is free. All times are in µs.

local _, not_after, algorithm, rules, cost = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _limit.lua

local at, rate = all_free_at(cost)
if at > now then return reply_denied(at, rate) end
return reply_admitted(now)
