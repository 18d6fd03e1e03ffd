-- Purpose: read the holder's identity (JSON under KEYS[2]). Expects `stored`, the value of the counter under KEYS[1].
-- Defines meta (the identity's JSON text, or false), known (true if the identity can be decoded), count (the counter's
--   value, 0 if there is none), text() (a field of the identity as text), owner() (the identity as replies contain it),
--   belongs_to(), is_held_by() and add_tombstone().
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
  -- A client may have written an execution id as a number.
  if type(value) == 'number' then return string.format('%.17g', value) end
  return ''
end

-- The lock is held while its counter exists. So a value that is below 1 or not a number counts as 1.
local count = stored and math.max(1, tonumber(stored) or 1) or 0

local function owner()
  return { known, text('lock_id'), text('workflow_id'), text('workflow_name'), text('execution_id'), text('locked_at'),
    redis.call('PTTL', KEYS[1]), meta ~= false, text('owner') }
end

-- Return whether the server that granted the lock bound it to this owner tag. An empty tag stands for any owner.
local function belongs_to(owner_tag)
  return owner_tag == '' or text('owner') == owner_tag
end

-- Return whether this lock_id holds the lock.
local function is_held_by(lock_id)
  return known and lock_id ~= '' and text('lock_id') == lock_id
end

-- Add a tombstone for a withdrawn ticket: until the time `until_` (µs), take.lua refuses delayed copies of the ticket's
-- Take. The first PEXPIRE has no effect, but it needs no memory. A server that has reached its maxmemory then does not
-- refuse the ZADD, so it can still release the lock.
local function add_tombstone(ticket, until_)
  if ticket == '' or until_ <= now then return end
  local life = string.format('%.0f', math.ceil((until_ - now) / 1000) + 1000)
  redis.call('PEXPIRE', KEYS[3], life)
  redis.call('ZADD', KEYS[3], string.format('%.0f', until_), ticket)
  redis.call('PEXPIRE', KEYS[3], life)
end
