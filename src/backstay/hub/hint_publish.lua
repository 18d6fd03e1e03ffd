-- Purpose: announce work: a counter for those who will come, and the message that calls them, in one step.
--   Nobody can hear the message before the counter is there.
-- KEYS[1]  the counter: <prefix>:hint:<hint id>
-- ARGV[1]  how many may come    ARGV[2]  the counter's life in ms
-- ARGV[3]  the channel (not a key: a message belongs to no slot)    ARGV[4]  the payload
-- Returns  how many subscribers this server told

local count, life = ARGV[1], ARGV[2]
local channel, payload = ARGV[3], ARGV[4]

redis.call('SET', KEYS[1], count, 'PX', life)
return redis.call('PUBLISH', channel, payload)
