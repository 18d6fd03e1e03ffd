-- Purpose: clean up after an execution: delete both keys if the identity has its execution_id.
-- KEYS: 1 = the counter; 2 = the identity; 3 = the tombstones
-- ARGV: 1 = {not_after, execution_id}; 2 = test clock
-- Returns: {removed, was, owner} | {kept, count, owner} | {expired, now}

local _, not_after, execution_id = cmsgpack.unpack_limit(ARGV[1], 2, 1)
-- include: _clock.lua
-- include: _owner.lua

if now > not_after then return reply('expired', now) end
if not known or text('execution_id') ~= execution_id then return reply('kept', count, owner()) end
local who = owner()
redis.call('DEL', KEYS[1], KEYS[2])
return reply('removed', count, who)
