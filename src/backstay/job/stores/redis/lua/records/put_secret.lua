-- Purpose: store a secret of the namespace, unless there is one with this name.
-- KEYS: 1 = the first shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = the secret's name; 3 = its value
-- Returns: the stored value

local SHARD = string.sub(KEYS[1], 1, -5)

local stored = redis.call('HGET', SHARD .. 'secrets', ARGV[2])
if stored then return stored end
redis.call('HSET', SHARD .. 'secrets', ARGV[2], ARGV[3])
return ARGV[3]
