-- Purpose: delete the record of a key.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = {not_after}; 2 = test clock
-- Returns: {done} | {expired, now}

local _, not_after = cmsgpack.unpack_limit(ARGV[1], 1, 1)
-- include: _clock.lua
if stored and string.sub(stored, 1, 3) == '\147\1\207' then
  now = math.max(now, (struct.unpack('>I8', stored, 4)))
end
if now > not_after then return reply('expired', now) end
redis.call('DEL', KEYS[1])
return reply('done')
