-- Purpose: extend the lease of a running call. Never revives a lost one.
-- KEYS: 1 = the key's record; 2 = the stored outcome
-- ARGV: 1 = {not_after, ticket, fence, lease}; 2 = test clock
-- Returns: {renewed, until} | {lost, by} | {expired, now}

local _, not_after, ticket, fence, lease = cmsgpack.unpack_limit(ARGV[1], 4, 1)
-- include: _clock.lua
-- include: _entry.lua

entry[LAST] = math.max(entry[LAST], fence)
if entry[TICKET] ~= ticket then return done('lost', entry[BY]) end
if entry[PHASE] == 'running' then
  if entry[UNTIL] <= now then return done('lost', '') end
  entry[UNTIL] = math.max(entry[UNTIL], now + lease) -- a delayed renewal never shortens
end
return done('renewed', entry[UNTIL])
