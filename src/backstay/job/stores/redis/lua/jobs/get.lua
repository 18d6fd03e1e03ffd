-- Purpose: read one job.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = the job's id
-- Returns: {record or false; doc (arguments, metadata, blockers); time in µs at which its lease ends, or false; ids of
--            the chains it still waits for, as far as they are not in the record}

local SHARD = string.sub(KEYS[1], 1, -5)
local id = ARGV[2]

return { redis.call('HGET', SHARD .. 'job', id), redis.call('HGET', SHARD .. 'doc', id),
  redis.call('ZSCORE', SHARD .. 'lease', id), redis.call('SMEMBERS', SHARD .. 'waits:' .. id) }
