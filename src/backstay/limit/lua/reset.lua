-- Purpose: delete the limit's record of one key, so that its counts start at zero.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = msgpack array: not_after (the engine's time in µs after which the command is rejected)
--       2 = test clock: the time in µs (absent in production)
-- Returns: {'done'} | {'expired', now}: the command arrived after not_after (now: the engine's time in µs)

local _, not_after = cmsgpack.unpack_limit(ARGV[1], 1, 1)
-- include: _clock.lua
if stored and string.sub(stored, 1, 3) == '\147\1\207' then
  now = math.max(now, (struct.unpack('>I8', stored, 4)))
end
if now > not_after then return reply('expired', now) end
redis.call('DEL', KEYS[1])
return reply('done')
