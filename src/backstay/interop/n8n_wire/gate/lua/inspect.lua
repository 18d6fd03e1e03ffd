-- Purpose: read the counter and the identity. Changes nothing.
-- KEYS: 1 = the counter; 2 = the identity; 3 = the tombstones
-- ARGV: 1 = {not_after}; 2 = test clock
-- Returns: {seen, now, count, owner} | {expired, now}

local _, not_after = cmsgpack.unpack_limit(ARGV[1], 1, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
return reply('seen', now, count, owner())
