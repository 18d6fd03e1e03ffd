-- Purpose: list the artifacts of a job.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job
-- Returns: name, {created, size, digest}, …; names begin with '=' if the upload is complete

local SHARD = string.sub(KEYS[1], 1, -5)

return redis.call('HGETALL', SHARD .. 'artifacts:' .. ARGV[2])
