-- Purpose: index a name under a tag, and keep the set at least as long as its longest-lived name.
-- KEYS: 1 = the tag's set
-- ARGV: 1 = name; 2 = life in ms
-- Returns: 1

local name, life = ARGV[1], tonumber(ARGV[2])

redis.call('SADD', KEYS[1], name)
if redis.call('PTTL', KEYS[1]) < life then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life))
end
return 1
