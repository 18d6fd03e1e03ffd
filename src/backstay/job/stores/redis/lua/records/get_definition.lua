-- Purpose: read one version of a workflow's definition.
-- KEYS: 1 = the first shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = workflow; 3 = version (0: the newest)
-- Returns: {version, one string of created, digest and doc, or false}

local SHARD = string.sub(KEYS[1], 1, -5)
local workflow, version = ARGV[2], tonumber(ARGV[3])

if version == 0 then
  local newest = redis.call('HGET', SHARD .. 'definition', workflow)
  version = newest and struct.unpack('>I8', newest) or 0
end
return { version, redis.call('HGET', SHARD .. 'definition-doc:' .. workflow, version) }
