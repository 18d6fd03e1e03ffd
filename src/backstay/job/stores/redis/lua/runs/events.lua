-- Purpose: read the next events of all runs.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the cursor that the last call returned; '' to read from the oldest stored event; '$' to get a cursor for
--         events from now on
--       3 = largest number of events to return
-- Returns: {cursor for the next call; then groups of events}. A group holds consecutive events of one run: the run's
--            id, number of its first event, number of events in the group, the encoded events
--
-- An entry of the stream `events` names a run, and the first and the last number of consecutive events of that run. A
-- cursor is the id of the last entry read, or '<id of the entry>:<number>' if its events were read only up to this
-- number.

local SHARD = string.sub(KEYS[1], 1, -5)
local cursor, limit = ARGV[2], tonumber(ARGV[3])
local PAGE = 100

if cursor == '$' then
  local last = redis.call('XREVRANGE', SHARD .. 'events', '+', '-', 'COUNT', 1)[1]
  return { last and last[1] or '0-0' }
end
local entry, seen = string.match(cursor, '^([^:]*):(%d+)$')
entry, seen = entry or cursor, tonumber(seen or 0)
local from = entry == '' and '-' or seen > 0 and entry or '(' .. entry
local found, left = { cursor }, limit
while left > 0 do
  local page = redis.call('XRANGE', SHARD .. 'events', from, '+', 'COUNT', PAGE)
  for _, item in ipairs(page) do
    if left == 0 then break end
    local run = item[2][1]
    local first, last = string.match(item[2][2], '^(%d+) (%d+)$')
    first, last = tonumber(first), tonumber(last)
    if item[1] == entry and seen >= first then first = seen + 1 end
    local stop = math.min(last, first + left - 1)
    local events = first <= stop and redis.call('LRANGE', SHARD .. 'run-events:' .. run, first - 1, stop - 1) or {}
    if #events > 0 then
      found[#found + 1] = run
      found[#found + 1] = first
      found[#found + 1] = #events
      for _, event in ipairs(events) do found[#found + 1] = event end
      left = left - #events
    end
    found[1] = stop < last and item[1] .. ':' .. string.format('%.0f', stop) or item[1]
    from = '(' .. item[1]
  end
  if #page < PAGE then break end
end
return found
