-- Purpose: delete the notes of jobs that are now registered with their blockers in other shards.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; then '<job> <chain>', …
-- Returns: number of deleted notes

-- include: _shard.lua
-- include: _record.lua

local before = redis.call('HLEN', SHARD .. 'unregistered')
local pairs_ = {}
for i = 2, #ARGV do pairs_[#pairs_ + 1] = ARGV[i] end
each('HDEL', 'unregistered', pairs_)
return before - redis.call('HLEN', SHARD .. 'unregistered')
