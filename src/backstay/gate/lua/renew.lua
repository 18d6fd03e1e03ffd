-- Purpose: extend a lease that has not ended. It never revives a lease that has ended.
-- KEYS: 1 = the gate's record
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--         ticket     the ticket that holds the lease
--         fence      the fence of the caller's lease; if the record's last fence is lower, it is set to this one
--         ttl        the length of the lease from now on in µs
--         ttl_number the number of this TTL, compared with the number that is stored with the lease. Higher: a new TTL,
--                    which may shorten the lease. Equal: the command never shortens the lease. Lower: a newer TTL has
--                    replaced this one, and the lease does not change
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'renewed', until, now, ttl_number}  the lease now ends at `until`, with the TTL of this number; times in µs
--         {'lost', holders}  not extended: the ticket holds no lease
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs
--       holders: a list with the first holder {ticket, lock_id, exclusive, fence, since, until, who}, or empty

local _, not_after, ticket, fence, ttl, ttl_number = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _clock.lua
-- include: _write.lua
local sender = ''
-- include: _gate.lua

gate[LAST] = math.max(gate[LAST], fence)
for _, h in ipairs(gate[HOLDERS]) do
  if h[TICKET] == ticket then
    local current = h[TTL_NUMBER] or 0
    if ttl_number > current then
      h[UNTIL], h[TTL_NUMBER] = now + ttl, ttl_number
    elseif ttl_number == current then
      h[UNTIL] = math.max(h[UNTIL], now + ttl) -- the keeper's renewal, or a delayed copy, never shortens the lease
    end
    return finish('renewed', h[UNTIL], now, h[TTL_NUMBER] or 0)
  end
end
return finish('lost', first_holder())
