-- Purpose: read the outputs of a job.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = the job's id
-- Returns: two values for each output: its key, its value

local SHARD = string.sub(KEYS[1], 1, -5)

return redis.call('HGETALL', SHARD .. 'outputs:' .. ARGV[2])
