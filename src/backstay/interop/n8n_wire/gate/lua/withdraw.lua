-- Purpose: withdraw a take whose outcome is unknown: undo it if it happened, and refuse its delayed copies.
-- KEYS: 1 = the counter; 2 = the identity; 3 = the tombstones
-- ARGV: 1 = {not_after, ticket, lock_id, identity, gone_until}; 2 = test clock
-- Returns: {released} | {absent} | {expired, now}

local _, not_after, ticket, lock_id, identity, gone_until = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
bury(ticket, gone_until)
if not ours(lock_id) or string.sub(meta, 1, #identity) ~= identity then return reply('absent') end
redis.call('DEL', KEYS[1], KEYS[2])
return reply('released')
