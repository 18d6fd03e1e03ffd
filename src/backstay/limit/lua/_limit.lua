-- Purpose: decode a limit's record and drop from it what has expired, for the limit scripts. Mirrors machine.py.
-- Expects these variables of the including script: not_after (µs), algorithm (its id), rules (one per rate), now (µs),
-- stored (the record, or false) and reply().
-- Defines `marks`: a list with the state of each rate (its mark) at the time `now`, in the order of rules.
-- Defines the functions of the algorithm, which algorithms.py describes: free_at, charge, refund, used, ends, encode.
-- The record is msgpack. Every number in it is stored with eight bytes, so that its offset is fixed.

if stored then
  if string.sub(stored, 1, 2) ~= '\147\1' then
    return redis.error_reply('CORRUPT record of another version, or damaged')
  end
  now = math.max(now, (struct.unpack('>I8', stored, 4)))
end
if now > not_after then return reply('expired', now) end

local LIMIT, WINDOW, BURST, GAIN, PRICE = 1, 2, 3, 4, 5
local decode, fresh, advance, free_at, charge, refund, used, ends, encode
if algorithm == 3 then
-- include: _log.lua
elseif algorithm == 0 then
-- include: _fixed.lua
elseif algorithm == 1 then
-- include: _counter.lua
else
-- include: _bucket.lua
end

local marks = {}
if stored then
  local place = 13
  if string.byte(stored, 12) ~= 144 + #rules then
    return redis.error_reply('CORRUPT marks do not match the algorithm and rates in the name')
  end
  for i, rule in ipairs(rules) do
    if string.byte(stored, place + 1) ~= algorithm then
      return redis.error_reply('CORRUPT marks do not match the algorithm and rates in the name')
    end
    marks[i], place = decode(place)
    advance(marks[i], rule, now)
  end
else
  for i, rule in ipairs(rules) do marks[i] = fresh(rule) end
end

-- Return the earliest time (µs) at which `cost` fits into all rates, and the index (from 1) of the rate that has room
-- last.
local function all_free_at(cost)
  local at, rate = free_at(marks[1], rules[1], cost), 1
  for i = 2, #rules do
    local free = free_at(marks[i], rules[i], cost)
    if free > at then at, rate = free, i end
  end
  return at, rate
end

local function reply_denied(at, rate)
  local mark, rule = marks[rate], rules[rate]
  local count = used(mark, rule)
  local reset = math.max(0, ends(mark, rule) - now)
  return reply('denied', now, rate - 1, count, math.max(0, rule[BURST] - count), reset, at - now)
end

local function reply_admitted(at)
  local rate, count, left
  for i, rule in ipairs(rules) do
    local taken = used(marks[i], rule)
    local rest = math.max(0, rule[BURST] - taken)
    if not left or rest < left then rate, count, left = i, taken, rest end
  end
  local reset = math.max(0, ends(marks[rate], rules[rate]) - now)
  return reply('admitted', at, rate - 1, count, left, reset, at - now)
end

-- Write the record, or delete it if all of its marks have expired. Its TTL ends when the last mark expires. The TTL of
-- a sliding log is one window longer, because _fast.lua adds hits to the log without extending the TTL each time.
-- frees: the record does not grow, so write it even if the server has reached its maxmemory. The server refuses SET
-- then, but not in a script whose first write needs no memory, such as PEXPIRE.
local function write(frees)
  local last, body, longer = 0, '', 0
  for i, rule in ipairs(rules) do
    last = math.max(last, ends(marks[i], rule))
    body = body .. encode(marks[i], rule)
    if algorithm == 3 then longer = math.max(longer, rule[WINDOW]) end
  end
  if last <= now then
    redis.call('DEL', KEYS[1])
  else
    local head = struct.pack('>BBBI8B', 147, 1, 207, now, 144 + #rules)
    -- With a test clock, the TTL is a day (in ms) longer: Redis expires keys by its own clock, not by the test's.
    local life = string.format('%.0f', math.ceil((last - now) / 1000) + longer + (ARGV[2] and 86400000 or 0))
    if frees then redis.call('PEXPIRE', KEYS[1], life) end
    redis.call('SET', KEYS[1], head .. body, 'PX', life)
  end
end
