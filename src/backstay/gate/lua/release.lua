-- Purpose: release a lease if it is the caller's.
-- KEYS: 1 = the gate
-- ARGV: 1 = {not_after, ticket, lock_id, fence, gone_until}; an empty ticket means: by lock_id; 2 = test clock
-- Returns: {released, lock_id} | {absent} | {foreign, holders} | {expired, now}

local _, not_after, ticket, lock_id, fence, gone_until = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _clock.lua

-- Fast path for a release of the only lease while the queue is empty, which is the common case. Same result as below,
-- without decoding the whole record.
if stored and string.byte(stored) == 149 and ticket ~= '' and gone_until == 0 then
  local _, version, capacity, last, seen, holders = cmsgpack.unpack_limit(stored, 5, 1)
  if version == 1 and #holders == 1 and holders[1][1] == ticket then
    now = math.max(now, seen)
    if now > not_after then return reply('expired', now) end
    if holders[1][6] > now then
      last = math.max(last, fence)
      local life = string.format('%.0f', math.ceil((math.max(last, now) - now) / 1000) + 86400000)
      redis.call('SET', KEYS[1], '\148' .. cmsgpack.pack(1, capacity, last, now), 'PX', life)
      return '\146' .. cmsgpack.pack('released', holders[1][2])
    end
  end
end
local asking = ''
-- include: _gate.lua

gate[LAST] = math.max(gate[LAST], fence)
if ticket ~= '' then bury(ticket, gone_until) end
for i, h in ipairs(gate[HOLDERS]) do
  if (ticket ~= '' and h[TICKET] == ticket) or (ticket == '' and h[LOCK_ID] == lock_id) then
    table.remove(gate[HOLDERS], i)
    return done('released', h[LOCK_ID])
  end
end
if #gate[HOLDERS] > 0 then return done('foreign', first_holder()) end
return done('absent')
