-- Purpose: extend the lock of a lock_id. Never revives a lost lock, never shortens its TTL.
-- KEYS: 1 = the counter; 2 = the identity; 3 = the tombstones
-- ARGV: 1 = {not_after, lock_id, ttl}; 2 = test clock
-- Returns: {renewed, until} | {lost, count, owner} | {expired, now}

local _, not_after, lock_id, ttl = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
if not stored or not ours(lock_id) then return reply('lost', count, owner()) end
local life = math.max(ttl, redis.call('PTTL', KEYS[1]))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life))
redis.call('PEXPIRE', KEYS[2], string.format('%.0f', life))
return reply('renewed', now + life * 1000)
