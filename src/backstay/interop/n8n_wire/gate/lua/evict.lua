-- Purpose: clean up after a failed execution: delete counter and identity if the identity has this execution_id.
-- KEYS: 1 = the counter: the lock is held while this key exists
--       2 = the identity: the holder as JSON
--       3 = the tombstones: withdrawn tickets, which are refused
-- ARGV: 1 = a msgpack array of:
--         not_after     the engine time in µs after which the command has no effect
--         execution_id  the n8n execution that has failed
--         owner_tag     delete only if the identity has this owner tag; empty: whatever tag it has
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'removed', count, owner}  both keys are deleted; their values before
--         {'kept', count, owner}  not deleted: the identity is missing, unreadable or of another execution
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs
--       count: the value of the counter; 0: there is none
--       owner: the identity as {known, lock_id, workflow_id, workflow_name, execution_id, locked_at, left, written,
--         owner_tag};
--         known: it can be read; left: TTL of the counter in ms (-1: none, -2: no counter); written: KEYS[2] exists

local _, not_after, execution_id, owner_tag = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
if not known or text('execution_id') ~= execution_id or not belongs_to(owner_tag) then
  return reply('kept', count, owner())
end
local who = owner()
redis.call('DEL', KEYS[1], KEYS[2])
return reply('removed', count, who)
