-- Purpose: read the events of all runs after a cursor.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = cursor, '' (from the oldest stored event) or '$' (from now on); 3 = number of events at most
-- Returns: {next cursor; then: run, number of the first event, count, events, …}
--
-- An entry of the stream refers to events of one run; a cursor may point into an entry: '<entry>:<number>'.

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
