-- Purpose: read one version of a workflow's definition.
-- KEYS: 1 = the first shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the workflow's name
--       3 = number of the version, 0 for the newest
-- Returns: {number of the version; a string with the time of its creation (µs), its digest and the definition
--            document}. The string is false if there is no such version

local SHARD = string.sub(KEYS[1], 1, -5)
local workflow, version = ARGV[2], tonumber(ARGV[3])

if version == 0 then
  local newest = redis.call('HGET', SHARD .. 'definition', workflow)
  version = newest and struct.unpack('>I8', newest) or 0
end
return { version, redis.call('HGET', SHARD .. 'definition-doc:' .. workflow, version) }
