-- Purpose: undo a Take (the command that takes the lock) whose outcome is unknown: release the lock if the Take was
--   applied, and refuse delayed copies of the Take.
-- KEYS: 1 = the counter: the lock is held while this key exists
--       2 = the identity: the holder as JSON
--       3 = the tombstones: withdrawn tickets, which are refused
-- ARGV: 1 = a msgpack array of:
--         not_after   the engine time in µs after which the command has no effect
--         ticket      the ticket of the Take
--         lock_id     the lock_id of the Take
--         identity    the caller's identity as JSON, without `locked_at` and the closing brace
--         gone_until  until this engine time in µs a delayed copy of the ticket's Take is refused; 0: no copy is
--                     in flight
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'released'}  the Take had been applied, and both keys are deleted
--         {'absent'}  the caller does not hold the lock
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs

local _, not_after, ticket, lock_id, identity, gone_until = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
add_tombstone(ticket, gone_until)
if not is_held_by(lock_id) or string.sub(meta, 1, #identity) ~= identity then return reply('absent') end
redis.call('DEL', KEYS[1], KEYS[2])
return reply('released')
