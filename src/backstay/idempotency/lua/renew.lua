-- Purpose: extend the lease of a running call. It never revives a lease that has ended.
-- KEYS: 1 = the record of the idempotency key
--       2 = the stored outcome of its call
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--         ticket     the ticket that runs the call
--         fence      the fence of the call's lease; the record's last fence becomes at least this
--         lease      the length of the lease from now on in µs
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'renewed', until}  until: when the lease ends now, in µs; if the call has already stored its
--           outcome: when the outcome expires
--         {'lost', by}  not extended: the ticket holds no lease; by: the process that runs the call, or empty
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs

local _, not_after, ticket, fence, lease = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _write.lua
-- include: _entry.lua

entry[LAST] = math.max(entry[LAST], fence)
if entry[TICKET] ~= ticket then return finish('lost', entry[BY]) end
if entry[PHASE] == 'running' then
  if entry[UNTIL] <= now then return finish('lost', '') end
  entry[UNTIL] = math.max(entry[UNTIL], now + lease) -- a delayed renewal never shortens the lease
end
return finish('renewed', entry[UNTIL])
