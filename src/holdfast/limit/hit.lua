-- Purpose: take a cost now, or within a time.
-- KEYS: 1 = the limit's record
-- ARGV: 1 = {not_after, law, rules, cost, wait}; 2 = test clock
-- Returns: {admitted, at, rate, count, remaining, reset, delay} | {denied, at, rate, count, remaining, reset, retry} |
--          {expired, now}

local _, not_after, law, rules, cost, wait = cmsgpack.unpack_limit(ARGV[1], 5, 1)
-- include: _clock.lua

-- Most limits have one rate, and most hits are admitted. Same meaning as below, without building marks.
if #rules == 1 and (law == 0 or law == 3) then
  local limit, window = rules[1][1], rules[1][2] * 1000
  local head, seen, kind, first, second = '', now, '', 0, 0
  if stored and #stored >= 37 then
    head, seen, kind, first, second = struct.unpack('>c3I8c3xxxxxxxxxxI8xI4', stored)
    if seen > now then now = seen end
  end
  local fits = now <= not_after and (not stored or head == '\147\1\207')
  if law == 0 and fits and (not stored or kind == '\145\148\0') then
    local index, count = math.floor(now / window), cost
    if stored then
      if first == index then count = cost + (struct.unpack('>I8', stored, 34)) end
      fits = first <= index
    end
    if fits and count <= limit then
      local ends = (index + 1) * window - now
      redis.call('SET', KEYS[1], struct.pack('>BBBI8BBBBI8BI8BI8', 147, 1, 207, now, 145, 148, 0, 207, limit, 207,
        index, 207, count), 'PX', string.format('%.0f', math.ceil(ends / 1000) + (ARGV[2] and 86400000 or 0)))
      return '\151' .. cmsgpack.pack('admitted', now, 0, count, limit - count, ends, 0)
    end
  elseif law == 3 and fits and (not stored or kind == '\145\148\3') then
    local total, begin, keep, merged = first + cost, 38, 37 + second, cost
    local gone = now - window
    while begin < keep do
      local at, had = struct.unpack('>I7I4', stored, begin)
      if at > gone then break end
      total, begin = total - had, begin + 11
    end
    if begin < keep then
      local at, had = struct.unpack('>I7I4', stored, keep - 10)
      fits = at <= now
      if math.floor(at / 1000) == math.floor(now / 1000) and had + cost <= 4294967295 then
        keep, merged = keep - 11, had + cost
      end
    end
    if fits and total <= limit then
      local runs = begin <= keep and string.sub(stored, begin, keep) or ''
      redis.call('SET', KEYS[1], struct.pack('>BBBI8BBBBI8BI8BI4', 147, 1, 207, now, 145, 148, 3, 207, limit, 207, total,
        198, #runs + 11) .. runs .. struct.pack('>I7I4', now, merged),
        'PX', string.format('%.0f', window / 1000 + (ARGV[2] and 86400000 or 0)))
      return '\151' .. cmsgpack.pack('admitted', now, 0, total, limit - total, window, 0)
    end
  end
end
-- include: _limit.lua

local at, rate = all_free_at(cost)
if at - now > wait then return denied(at, rate) end
for i, rule in ipairs(rules) do charge(marks[i], rule, cost, at) end
write()
return admitted(at)
