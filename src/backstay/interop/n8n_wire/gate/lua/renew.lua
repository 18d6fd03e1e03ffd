-- Purpose: extend the lock if this lock_id holds it. It never revives a lost lock and never shortens the TTL.
-- KEYS: 1 = the counter: the lock is held while this key exists
--       2 = the identity: the holder as JSON
--       3 = the tombstones: withdrawn tickets, which are refused
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--         lock_id    the caller's lock_id
--         ttl        the new TTL of counter and identity in ms
--         owner_tag  extend only if the identity has this owner tag; empty: whatever tag it has
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'renewed', until}  the lock now ends at this time in µs
--         {'lost', count, owner}  not extended: this lock_id does not hold the lock
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs
--       count: the value of the counter; 0: there is none
--       owner: the identity as {known, lock_id, workflow_id, workflow_name, execution_id, locked_at, left, written,
--         owner_tag};
--         known: whether the identity can be read; left: remaining TTL of the counter in ms (-1: it has no TTL, -2:
--         there is no counter); written: whether the identity's key exists

local _, not_after, lock_id, ttl, owner_tag = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
if not stored or not is_held_by(lock_id) or not belongs_to(owner_tag) then return reply('lost', count, owner()) end
local life = math.max(ttl, redis.call('PTTL', KEYS[1]))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life))
redis.call('PEXPIRE', KEYS[2], string.format('%.0f', life))
return reply('renewed', now + life * 1000)
