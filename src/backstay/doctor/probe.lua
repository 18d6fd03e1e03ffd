-- Purpose: run commands that Backstay's scripts use, to check that the Redis user may run them. Leaves no key behind.
-- KEYS: 1 = an unused key of the namespace
-- ARGV: 1 = a channel of the namespace without subscribers
-- Returns: 1. If a command is not permitted, the script fails with Redis's error.

local key, channel = KEYS[1], ARGV[1]

redis.call('TIME')
redis.call('SET', key, cmsgpack.pack('probe'), 'PX', '1000')
redis.call('GET', key)
redis.call('GETRANGE', key, 0, 0)
redis.call('SETRANGE', key, 0, 'p')
redis.call('APPEND', key, '')
redis.call('PEXPIRE', key, '1000')
redis.call('PTTL', key)
redis.call('PUBLISH', channel, '')
redis.call('DEL', key)
return 1
