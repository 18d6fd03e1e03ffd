-- Purpose: list the artifacts of a job and its unfinished uploads.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = the job's id
-- Returns: two values for each artifact: '=<name>', then a string with the time of its creation (µs, 8 bytes) and
--            msgpack {size in bytes, digest}
--          two values for each unfinished upload: '~<name>', then msgpack {size in bytes, digest}

local SHARD = string.sub(KEYS[1], 1, -5)

return redis.call('HGETALL', SHARD .. 'artifacts:' .. ARGV[2])
