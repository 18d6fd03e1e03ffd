-- Purpose: read one record together with the server's clock.
-- KEYS: 1 = the record
-- ARGV: 1 = unused
--       2 = the time of a test clock in µs (absent in production)
-- Returns: {seconds, microseconds, record}: the clock as TIME returns it, and the encoded record, or false if there is
--          none. With a test clock, seconds is 0 and microseconds is ARGV[2].

local t = ARGV[2] and { '0', ARGV[2] } or redis.call('TIME')
return { t[1], t[2], redis.call('GET', KEYS[1]) }
