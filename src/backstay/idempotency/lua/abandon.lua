-- Purpose: remove a running or waiting ticket without an outcome.
-- KEYS: 1 = the key's record; 2 = the stored outcome
-- ARGV: 1 = {not_after, ticket, gone_until}; 2 = test clock
-- Returns: {abandoned, was} with was = running, waiting or absent | {expired, now}

local _, not_after, ticket, gone_until = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
-- include: _entry.lua

local was = 'absent'
for _, w in ipairs(entry[WAITERS]) do
  if w[1] == ticket then was = 'waiting' end
end
-- Add a tombstone: a delayed copy of this ticket's Begin must not bring the ticket back.
if gone_until > now then
  entry[GONE] = keep(entry[GONE], function(g) return g[1] ~= ticket end)
  entry[GONE][#entry[GONE] + 1] = { ticket, gone_until }
end
entry[WAITERS] = keep(entry[WAITERS], function(w) return w[1] ~= ticket end)
if entry[PHASE] == 'running' and entry[TICKET] == ticket then
  was = 'running'
  idle()
  wake_heirs()
end
return done('abandoned', was)
