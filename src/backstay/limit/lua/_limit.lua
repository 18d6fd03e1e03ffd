-- Purpose: load a limit's record and apply the passage of time, for every limit script. Mirrors machine.py.
-- Expects not_after, law (the algorithm_id), rules, now, stored and reply(). Leaves one mark for each rule in `marks`,
-- without what has expired, and the algorithm as free_at, charge, refund, used, ends and encode.
-- Numbers are stored at full width, so that each has a fixed offset; it is still plain msgpack for Python.

if stored then
  if string.sub(stored, 1, 2) ~= '\147\1' then
    return redis.error_reply('CORRUPT record of another version, or damaged')
  end
  now = math.max(now, (struct.unpack('>I8', stored, 4)))
end
if now > not_after then return reply('expired', now) end

local LIMIT, WINDOW, BURST, GAIN, PRICE = 1, 2, 3, 4, 5
local decode, fresh, passed, free_at, charge, refund, used, ends, encode
if law == 3 then
-- include: _log.lua
elseif law == 0 then
-- include: _fixed.lua
elseif law == 1 then
-- include: _counter.lua
else
-- include: _bucket.lua
end

local marks = {}
if stored then
  local place = 13
  if string.byte(stored, 12) ~= 144 + #rules then
    return redis.error_reply('CORRUPT a limit that does not fit its name')
  end
  for i, rule in ipairs(rules) do
    if string.byte(stored, place + 1) ~= law then
      return redis.error_reply('CORRUPT a limit that does not fit its name')
    end
    marks[i], place = decode(place)
    passed(marks[i], rule, now)
  end
else
  for i, rule in ipairs(rules) do marks[i] = fresh(rule) end
end

-- Return the earliest time at which `cost` fits into all rates, and the rate that has room last.
local function all_free_at(cost)
  local at, rate = free_at(marks[1], rules[1], cost), 1
  for i = 2, #rules do
    local free = free_at(marks[i], rules[i], cost)
    if free > at then at, rate = free, i end
  end
  return at, rate
end

local function denied(at, rate)
  local mark, rule = marks[rate], rules[rate]
  local count = used(mark, rule)
  local reset = math.max(0, ends(mark, rule) - now)
  return reply('denied', now, rate - 1, count, math.max(0, rule[BURST] - count), reset, at - now)
end

local function admitted(at)
  local rate, count, left
  for i, rule in ipairs(rules) do
    local taken = used(marks[i], rule)
    local rest = math.max(0, rule[BURST] - taken)
    if not left or rest < left then rate, count, left = i, taken, rest end
  end
  local reset = math.max(0, ends(marks[rate], rules[rate]) - now)
  return reply('admitted', at, rate - 1, count, left, reset, at - now)
end

-- Write the record with a TTL until all its marks have ended; for a log one window longer, because _fast.lua relies on
-- that.
local function write()
  local last, body, longer = 0, '', 0
  for i, rule in ipairs(rules) do
    last = math.max(last, ends(marks[i], rule))
    body = body .. encode(marks[i], rule)
    if law == 3 then longer = math.max(longer, rule[WINDOW]) end
  end
  if last <= now then
    redis.call('DEL', KEYS[1])
  else
    local head = struct.pack('>BBBI8B', 147, 1, 207, now, 144 + #rules)
    -- Keys expire by the server's clock, not by a test clock.
    local life = math.ceil((last - now) / 1000) + longer + (ARGV[2] and 86400000 or 0)
    redis.call('SET', KEYS[1], head .. body, 'PX', string.format('%.0f', life))
  end
end
