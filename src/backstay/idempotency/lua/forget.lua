-- Purpose: reset the key to idle, even while a call runs, and advance the fence.
-- KEYS: 1 = the key's record; 2 = the stored outcome
-- ARGV: 1 = {not_after}; 2 = test clock
-- Returns: {forgotten, was} with was = the phase before | {expired, now}

local _, not_after = cmsgpack.unpack_limit(ARGV[1], 1, 1)
-- include: _clock.lua
-- include: _entry.lua

local was = entry[PHASE]
idle()
entry[LAST] = math.max(entry[LAST] + 1, now)
wake_heirs()
drop()
return done('forgotten', was)
