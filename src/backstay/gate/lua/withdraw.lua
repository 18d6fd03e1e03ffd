-- Purpose: remove a ticket in any state: held, offered or queued.
-- KEYS: 1 = the gate
-- ARGV: 1 = {not_after, ticket, gone_until}; 2 = test clock
-- Returns: {withdrawn, was, holders} with was = held, offered, queued or absent | {expired, now}

local _, not_after, ticket, gone_until = cmsgpack.unpack_limit(ARGV[1], 3, 1)
-- include: _clock.lua
local asking = ''
-- include: _gate.lua

local was = 'absent'
for _, h in ipairs(gate[HOLDERS]) do
  if h[TICKET] == ticket then was = 'held' end
end
for _, w in ipairs(gate[QUEUE]) do
  if w[TICKET] == ticket then was = w[OFFERED] > 0 and 'offered' or 'queued' end
end
bury(ticket, gone_until)
gate[HOLDERS] = keep(gate[HOLDERS], function(h) return h[TICKET] ~= ticket end)
gate[QUEUE] = keep(gate[QUEUE], function(w) return w[TICKET] ~= ticket end)
return done('withdrawn', was, first_holder())
