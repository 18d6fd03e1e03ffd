-- Purpose: take the lock if its counter is absent: write counter and identity with the same TTL. The keys of another
--   holder are never changed.
-- KEYS: 1 = the counter: the lock is held while this key exists
--       2 = the identity: the holder as JSON
--       3 = the tombstones: withdrawn tickets, which are refused
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--         ticket     the id of this attempt to take the lock
--         lock_id    the id under which the caller will hold and release the lock
--         identity   the caller's identity as JSON, without `locked_at` and the closing brace, which
--                    this script adds
--         ttl        the TTL of counter and identity in ms
--         is_resend  true: an earlier copy of this Take may have been applied
--         replaces   the identity_hash of an earlier reply 'leaving', if the caller has waited long enough: an
--                    identity with this SHA-1 and without a counter may be overwritten; empty: none
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'granted', count, locked_at, until}  the caller holds the lock from locked_at (ISO 8601) to until (µs)
--         {'busy', count, owner}  not taken: another client holds the lock
--         {'leaving', identity_hash, owner}  not taken: there is an identity (with this SHA-1), but no counter
--         {'expired', now}  refused: not_after has passed, or the ticket was withdrawn; now: engine time in µs
--       count: the value of the counter; 0: there is none
--       owner: the identity as {known, lock_id, workflow_id, workflow_name, execution_id, locked_at, left, written,
--         owner_tag};
--         known: it can be read; left: TTL of the counter in ms (-1: none, -2: no counter); written: KEYS[2] exists

local _, not_after, ticket, lock_id, identity, ttl, is_resend, replaces = cmsgpack.unpack_limit(ARGV[1], 7, 1)
-- include: _clock.lua
-- include: _owner.lua
-- include: _iso.lua

if now > not_after or redis.call('ZSCORE', KEYS[3], ticket) then return reply('expired', now) end
local life = string.format('%.0f', ttl)

if stored then
  -- The caller holds the lock already: an earlier copy of this Take was applied, but its reply was lost. The TTL starts
  -- anew, because the caller assumes that the TTL starts with the copy that gets a reply.
  if is_resend and is_held_by(lock_id) and string.sub(meta, 1, #identity) == identity then
    redis.call('PEXPIRE', KEYS[1], life)
    redis.call('PEXPIRE', KEYS[2], life)
    return reply('granted', count, text('locked_at'), now + ttl * 1000)
  end
  return reply('busy', count, owner())
end

-- There is an identity without a counter: the previous holder has deleted the counter and may be about to delete the
-- identity. If the lock were granted now, that deletion would hit the new holder's identity.
if meta then
  local identity_hash = redis.sha1hex(meta)
  if identity_hash ~= replaces then return reply('leaving', identity_hash, owner()) end
end

local locked_at = iso(now)
redis.call('SET', KEYS[1], '1', 'PX', life)
redis.call('SET', KEYS[2], identity .. ',"locked_at":"' .. locked_at .. '"}', 'PX', life)
return reply('granted', 1, locked_at, now + ttl * 1000)
