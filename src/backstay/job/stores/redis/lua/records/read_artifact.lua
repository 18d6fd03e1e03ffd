-- Purpose: read one part of a job's artifact.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the job's id
--       3 = the artifact's name
--       4 = number of the part, counted from 0
-- Returns: the part's data; false if there is no such part, or the artifact is not complete

local SHARD = string.sub(KEYS[1], 1, -5)

return redis.call('LINDEX', SHARD .. 'artifact:' .. ARGV[2] .. ':=' .. ARGV[3], ARGV[4])
