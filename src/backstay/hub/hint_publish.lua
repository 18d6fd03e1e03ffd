-- Purpose: announce jobs. Creates a counter of how many workers may respond, and publishes the message, in one atomic
--   step: no subscriber receives the message before the counter exists.
-- KEYS: 1 = the counter: <prefix>:hint:<hint id>
-- ARGV: 1 = how many workers may respond
--       2 = the counter's TTL in ms
--       3 = the channel to publish on (not in KEYS, because a channel belongs to no Cluster slot)
--       4 = the message
-- Returns: how many subscribers of this server received the message

local count, life = ARGV[1], ARGV[2]
local channel, payload = ARGV[3], ARGV[4]

redis.call('SET', KEYS[1], count, 'PX', life)
return redis.call('PUBLISH', channel, payload)
