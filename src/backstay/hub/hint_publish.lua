-- Purpose: announce work: create the counter and publish the message atomically, so that no subscriber receives the
--   message before the counter exists.
-- KEYS[1]  the counter: <prefix>:hint:<hint id>
-- ARGV[1]  how many workers may respond    ARGV[2]  the counter's TTL in ms
-- ARGV[3]  the channel (not a key: a message belongs to no slot)    ARGV[4]  the payload
-- Returns  how many subscribers of this server received the message

local count, life = ARGV[1], ARGV[2]
local channel, payload = ARGV[3], ARGV[4]

redis.call('SET', KEYS[1], count, 'PX', life)
return redis.call('PUBLISH', channel, payload)
