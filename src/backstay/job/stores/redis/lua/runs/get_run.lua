-- Purpose: read one run.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = the run's id; 3 = '1' to read its document too
-- Returns: {the run's record, or false if the run is not stored; the run's document (inputs, job names, trigger), or
--            false if it was not asked for}

local SHARD = string.sub(KEYS[1], 1, -5)

local with_doc = ARGV[3] == '1'

return { redis.call('HGET', SHARD .. 'run', ARGV[2]), with_doc and redis.call('HGET', SHARD .. 'run-doc', ARGV[2]) }
