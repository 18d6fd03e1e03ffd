-- Purpose: release the lock. Deletes counter and identity if the identity has the caller's lock_id, else nothing.
-- KEYS: 1 = the counter: the lock is held while this key exists
--       2 = the identity: the holder as JSON
--       3 = the tombstones: withdrawn tickets, which are refused
-- ARGV: 1 = a msgpack array of:
--         not_after   the engine time in µs after which the command has no effect
--         lock_id     the caller's lock_id
--         ticket      the ticket of the caller's Take; empty: no copy of it is in flight
--         gone_until  until this engine time in µs a delayed copy of the ticket's Take is refused; 0: no copy is
--                     in flight
--         owner_tag   release only if the identity has this owner tag; empty: whatever tag it has
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'released'}  the caller held the lock, and both keys are deleted
--         {'absent'}  nothing to release: there is no identity
--         {'foreign', owner}  not released: the identity has another lock_id
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs
--       owner: the identity as {known, lock_id, workflow_id, workflow_name, execution_id, locked_at, left, written,
--         owner_tag};
--         known: it can be read; left: TTL of the counter in ms (-1: none, -2: no counter); written: KEYS[2] exists

local _, not_after, lock_id, ticket, gone_until, owner_tag = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
add_tombstone(ticket, gone_until)
if not meta then return reply('absent') end
if not is_held_by(lock_id) or not belongs_to(owner_tag) then return reply('foreign', owner()) end
redis.call('DEL', KEYS[1], KEYS[2])
return reply('released')
