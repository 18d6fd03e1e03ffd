-- Purpose: extend a live lease. Never revives a lost one.
-- KEYS: 1 = the gate
-- ARGV: 1 = {not_after, ticket, fence, ttl}; 2 = test clock
-- Returns: {renewed, until} | {lost, holders} | {expired, now}

local _, not_after, ticket, fence, ttl = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
local asking = ''
-- include: _gate.lua

gate[LAST] = math.max(gate[LAST], fence)
for _, h in ipairs(gate[HOLDERS]) do
  if h[TICKET] == ticket then
    h[UNTIL] = math.max(h[UNTIL], now + ttl) -- a delayed renewal never shortens the lease
    return done('renewed', h[UNTIL])
  end
end
return done('lost', first_holder())
