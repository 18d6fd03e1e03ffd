-- Purpose: read the holder's identity, which is stored beside the counter. `stored` is the counter.
local meta = redis.call('GET', KEYS[2])
local found = {}
local known = false
if meta then
  local ok, read = pcall(cjson.decode, meta)
  if ok and type(read) == 'table' then
    found, known = read, true
  end
end

local function text(field)
  local value = found[field]
  if type(value) == 'string' then return value end
  if type(value) == 'number' then return string.format('%.17g', value) end -- an execution id that lost its quotes
  return ''
end

-- Any existing counter counts as held, even one with a value that is not a number.
local count = stored and math.max(1, tonumber(stored) or 1) or 0

local function owner()
  return { known, text('lock_id'), text('workflow_id'), text('workflow_name'), text('execution_id'), text('locked_at'),
    redis.call('PTTL', KEYS[1]), meta ~= false }
end

-- Return whether this lock_id holds the lock.
local function ours(lock_id)
  return known and lock_id ~= '' and text('lock_id') == lock_id
end

-- Add a tombstone for a withdrawn ticket: it refuses a delayed copy of the ticket's Take.
local function bury(ticket, until_)
  if ticket == '' or until_ <= now then return end
  redis.call('ZADD', KEYS[3], string.format('%.0f', until_), ticket)
  redis.call('PEXPIRE', KEYS[3], string.format('%.0f', math.ceil((until_ - now) / 1000) + 1000))
end
