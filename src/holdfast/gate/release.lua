-- Purpose: give a lease back after checking that it is the caller's.
-- KEYS: 1 = the gate
-- ARGV: 1 = {not_after, ticket, lock_id, fence, gone_until}; an empty ticket means: by lock_id; 2 = test clock
-- Returns: {released, lock_id} | {absent} | {foreign, holders} | {expired, now}

local ticket, lock_id, fence, gone_until = cmd[2], cmd[3], cmd[4], cmd[5]

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
