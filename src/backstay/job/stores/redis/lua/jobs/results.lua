-- Purpose: read the records of a run's jobs, newest first.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = run; 3 = only ids before this one ('': all); 4 = number at most
-- Returns: {ids, records}

local SHARD = string.sub(KEYS[1], 1, -5)
local before = ARGV[3] == '' and '+' or '(' .. ARGV[3]

local ids = redis.call('ZREVRANGEBYLEX', SHARD .. 'run-jobs:' .. ARGV[2], before, '-', 'LIMIT', 0, ARGV[4])
if #ids == 0 then return { ids, ids } end
return { ids, redis.call('HMGET', SHARD .. 'job', unpack(ids)) }
