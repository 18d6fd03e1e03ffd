-- Purpose: delete both keys, for any holder. An operator's last resort.
-- KEYS: 1 = the counter; 2 = the identity; 3 = the tombstones
-- ARGV: 1 = {not_after}; 2 = test clock
-- Returns: {removed, was, owner} | {expired, now}

local _, not_after = cmsgpack.unpack_limit(ARGV[1], 1, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
local who = owner()
redis.call('DEL', KEYS[1], KEYS[2])
return reply('removed', count, who)
