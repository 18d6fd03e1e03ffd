-- Purpose: store the next version of a workflow's definition, unless the newest one has the same digest.
-- KEYS: 1 = the first shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = workflow; 3 = digest; 4 = doc
-- Returns: {version, created, digest} of the newest

-- include: _shard.lua
local workflow, digest, doc = ARGV[2], ARGV[3], ARGV[4]

local newest, version = redis.call('HGET', SHARD .. 'definition', workflow), 0
if newest then
  version = struct.unpack('>I8', newest)
  if string.sub(newest, 17) == digest then return newest end
end
newest = struct.pack('>I8I8', version + 1, now) .. digest
redis.call('HSET', SHARD .. 'definition', workflow, newest)
redis.call('ZADD', SHARD .. 'definitions', '0', workflow)
redis.call('HSET', SHARD .. 'definition-doc:' .. workflow, version + 1, struct.pack('>I8I2', now, #digest) .. digest .. doc)
return newest
