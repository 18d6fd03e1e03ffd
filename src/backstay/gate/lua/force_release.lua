-- Purpose: remove all holders and advance the fence.
-- KEYS: 1 = the gate
-- ARGV: 1 = {not_after}; 2 = test clock
-- Returns: {removed, fence, holders} | {expired, now}

local _, not_after = cmsgpack.unpack_limit(ARGV[1], 1, 1)
-- include: _clock.lua
local asking = ''
-- include: _gate.lua

local removed = gate[HOLDERS]
gate[HOLDERS] = {}
gate[LAST] = math.max(gate[LAST] + 1, now)
return done('removed', gate[LAST], removed)
