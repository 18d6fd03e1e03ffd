-- Purpose: read one record together with the server's clock.
-- KEYS: 1 = the record
-- ARGV: 1 = unused; 2 = test clock
-- Returns: {seconds, microseconds, record or false}

local t = ARGV[2] and { '0', ARGV[2] } or redis.call('TIME')
return { t[1], t[2], redis.call('GET', KEYS[1]) }
