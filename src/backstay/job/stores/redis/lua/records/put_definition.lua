-- Purpose: store the next version of a workflow's definition, unless the newest stored version has the same digest.
-- KEYS: 1 = the first shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the workflow's name
--       3 = digest (hash) of the document
--       4 = the definition document
-- Returns: one string with number, time of creation (µs) and digest of the version that is now the newest

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
local stored = struct.pack('>I8I2', now, #digest) .. digest .. doc
redis.call('HSET', SHARD .. 'definition-doc:' .. workflow, version + 1, stored)
return newest
