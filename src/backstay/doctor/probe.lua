-- Purpose: everything the scripts of Backstay use, once, leaving nothing behind.
-- KEYS: 1 = a key of the namespace that nobody uses
-- ARGV: 1 = a channel of the namespace that nobody hears
-- Returns: 1

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
