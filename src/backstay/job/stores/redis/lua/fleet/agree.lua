-- Purpose: into how many shards jobs are divided: remembered with the first use, the same for all who come later.
-- KEYS: 1 = the first shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = shards
-- Returns: 1 | error SHARDS n

-- include: _agree.lua
return 1
