-- Purpose: take the lock if its counter is absent: write both keys with one TTL. Never changes another holder's keys.
-- KEYS: 1 = the counter; 2 = the identity; 3 = the tombstones
-- ARGV: 1 = {not_after, ticket, lock_id, identity, ttl, again, over}; 2 = test clock
-- Returns: {granted, count, locked_at, until} | {busy, count, owner} | {leaving, trace, owner} | {expired, now}

local _, not_after, ticket, lock_id, identity, ttl, again, over = cmsgpack.unpack_limit(ARGV[1], 7, 1)
-- include: _clock.lua
-- include: _owner.lua
-- include: _iso.lua

if now > not_after or redis.call('ZSCORE', KEYS[3], ticket) then return reply('expired', now) end
local life = string.format('%.0f', ttl)

if stored then
  -- A resend after a lost reply. The TTL starts again now, because the sender counts it from this request.
  if again and ours(lock_id) and string.sub(meta, 1, #identity) == identity then
    redis.call('PEXPIRE', KEYS[1], life)
    redis.call('PEXPIRE', KEYS[2], life)
    return reply('granted', count, text('locked_at'), now + ttl * 1000)
  end
  return reply('busy', count, owner())
end

-- An identity without its counter: a client is deleting the two one after the other, and would delete the caller's too.
if meta then
  local trace = redis.sha1hex(meta)
  if trace ~= over then return reply('leaving', trace, owner()) end
end

local locked_at = iso(now)
redis.call('SET', KEYS[1], '1', 'PX', life)
redis.call('SET', KEYS[2], identity .. ',"locked_at":"' .. locked_at .. '"}', 'PX', life)
return reply('granted', 1, locked_at, now + ttl * 1000)
