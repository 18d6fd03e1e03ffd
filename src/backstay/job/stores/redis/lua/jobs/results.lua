-- Purpose: read the records of a run's jobs, newest first.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the run's id
--       3 = return only jobs whose id is smaller than this one, '' for all
--       4 = largest number of jobs to return
-- Returns: {list of job ids, list of their records (false: deleted)}

local SHARD = string.sub(KEYS[1], 1, -5)
local before = ARGV[3] == '' and '+' or '(' .. ARGV[3]

local ids = redis.call('ZREVRANGEBYLEX', SHARD .. 'run-jobs:' .. ARGV[2], before, '-', 'LIMIT', 0, ARGV[4])
if #ids == 0 then return { ids, ids } end
return { ids, redis.call('HMGET', SHARD .. 'job', unpack(ids)) }
