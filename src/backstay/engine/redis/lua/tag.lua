-- Purpose: add a name to the set of names that have a tag. The set's TTL is never shortened, so the set lives as long
--   as its longest-lived name.
-- KEYS: 1 = the tag's set of names
-- ARGV: 1 = the name to add
--       2 = how long the name must stay in the set, in ms
-- Returns: 1

local name, life = ARGV[1], tonumber(ARGV[2])

redis.call('SADD', KEYS[1], name)
if redis.call('PTTL', KEYS[1]) < life then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life))
end
return 1
