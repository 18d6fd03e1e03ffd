-- Purpose: remove the leases and the queued tickets of one execution, and nothing else.
-- KEYS: 1 = the gate
-- ARGV: 1 = {not_after, execution_id}; 2 = test clock
-- Returns: {removed, fence, holders} | {expired, now}

local _, not_after, execution_id = cmsgpack.unpack_limit(ARGV[1], 2, 1)
-- include: _clock.lua
local asking = ''
-- include: _gate.lua

local removed = keep(gate[HOLDERS], function(h) return h[HOLDER_WHO][1] == execution_id end)
gate[HOLDERS] = keep(gate[HOLDERS], function(h) return h[HOLDER_WHO][1] ~= execution_id end)
gate[QUEUE] = keep(gate[QUEUE], function(w) return w[WAITER_WHO][1] ~= execution_id end)
return done('removed', 0, removed)
