-- Purpose: read one run.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = run; 3 = '1': with its document
-- Returns: {record or false, doc or false}

local SHARD = string.sub(KEYS[1], 1, -5)

local with_doc = ARGV[3] == '1'

return { redis.call('HGET', SHARD .. 'run', ARGV[2]), with_doc and redis.call('HGET', SHARD .. 'run-doc', ARGV[2]) }
