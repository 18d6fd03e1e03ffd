-- Purpose: read the next lines of a job's log.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the job's id
--       3 = number of the last line already read
--       4 = largest number of lines to return
-- Returns: '<number> <encoded line>', …

local SHARD = string.sub(KEYS[1], 1, -5)
local id, after, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])

return redis.call('ZRANGEBYSCORE', SHARD .. 'log:' .. id, '(' .. after, '+inf', 'LIMIT', 0, limit)
