-- Purpose: release the lock: delete both keys if the identity is the caller's, else nothing.
-- KEYS: 1 = the counter; 2 = the identity; 3 = the tombstones
-- ARGV: 1 = {not_after, lock_id, ticket, gone_until}; 2 = test clock
-- Returns: {released} | {absent} | {foreign, owner} | {expired, now}

local _, not_after, lock_id, ticket, gone_until = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
bury(ticket, gone_until)
if not meta then return reply('absent') end
if not ours(lock_id) then return reply('foreign', owner()) end
redis.call('DEL', KEYS[1], KEYS[2])
return reply('released')
