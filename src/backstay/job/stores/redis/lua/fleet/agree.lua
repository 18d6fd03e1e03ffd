-- Purpose: store the number of shards at the first use; reject callers with another number.
-- KEYS: 1 = the first shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = shards
-- Returns: 1 | error SHARDS n

-- include: _agree.lua
return 1
