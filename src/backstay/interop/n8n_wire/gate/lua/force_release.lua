-- Purpose: delete counter and identity of any holder. An operator's last resort.
-- KEYS: 1 = the counter: the lock is held while this key exists
--       2 = the identity: the holder as JSON
--       3 = the tombstones: withdrawn tickets, which are refused
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'removed', count, owner}  both keys are deleted; their values before
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs
--       count: the value of the counter; 0: there is none
--       owner: the identity as {known, lock_id, workflow_id, workflow_name, execution_id, locked_at, left, written,
--         owner_tag};
--         known: it can be read; left: TTL of the counter in ms (-1: none, -2: no counter); written: KEYS[2] exists

local _, not_after = cmsgpack.unpack_limit(ARGV[1], 1, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
local who = owner()
redis.call('DEL', KEYS[1], KEYS[2])
return reply('removed', count, who)
