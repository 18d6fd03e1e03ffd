-- Purpose: the law of the exact sliding window. Mirrors Log in marks.py. Runs stay packed: only those at either end are
-- looked at. A mark: {total, source, first, last}, the runs being in `source` from byte `first` to byte `last`.
local TOTAL, SOURCE, FIRST, LAST = 1, 2, 3, 4
local TIME_OF, RUN, LARGEST = '>I7I4', 11, 4294967295
decode = function(place)
  local total, size = struct.unpack('>I8xI4', stored, place + 12)
  return { total, stored, place + 25, place + 24 + size }, place + 25 + size
end
fresh = function(rule)
  return { 0, '', 1, 0 }
end
local function latest(mark)
  if mark[LAST] < mark[FIRST] then return 0, 0 end
  return struct.unpack(TIME_OF, mark[SOURCE], mark[LAST] - RUN + 1)
end
passed = function(mark, rule, at)
  local gone = at - rule[WINDOW] * 1000
  while mark[FIRST] < mark[LAST] do
    local when, cost = struct.unpack(TIME_OF, mark[SOURCE], mark[FIRST])
    if when > gone then return end
    mark[TOTAL], mark[FIRST] = mark[TOTAL] - cost, mark[FIRST] + RUN
  end
end
free_at = function(mark, rule, cost)
  local over, place = mark[TOTAL] + cost - rule[LIMIT], mark[FIRST]
  local free = math.max(now, (latest(mark)))
  while over > 0 and place < mark[LAST] do
    local when, gone = struct.unpack(TIME_OF, mark[SOURCE], place)
    free = math.max(free, when + rule[WINDOW] * 1000)
    over, place = over - gone, place + RUN
  end
  return free
end
charge = function(mark, rule, cost, at)
  local when, before = latest(mark)
  at = math.max(at, when)
  local keep, merged = mark[LAST], cost
  if math.floor(when / 1000) == math.floor(at / 1000) and before + cost <= LARGEST then
    keep, merged = keep - RUN, before + cost
  end
  mark[TOTAL] = mark[TOTAL] + cost
  mark[SOURCE] = string.sub(mark[SOURCE], mark[FIRST], keep) .. struct.pack(TIME_OF, at, merged)
  mark[FIRST], mark[LAST] = 1, #mark[SOURCE]
end
-- The reservation that was made for `at`; else the oldest, so that no hit is forgotten too early.
refund = function(mark, rule, cost, at)
  local source, begin = mark[SOURCE], mark[FIRST]
  if at > 0 then
    local place, ms = mark[LAST] - RUN + 1, math.floor(at / 1000)
    while place > mark[FIRST] and math.floor((struct.unpack(TIME_OF, source, place)) / 1000) > ms do
      place = place - RUN
    end
    if place >= mark[FIRST] and math.floor((struct.unpack(TIME_OF, source, place)) / 1000) == ms then begin = place end
  end
  local place, left, kept = begin, cost, ''
  while left > 0 and place < mark[LAST] do
    local when, had = struct.unpack(TIME_OF, source, place)
    place = place + RUN
    if had > left then kept = struct.pack(TIME_OF, when, had - left) end
    left = left - math.min(had, left)
  end
  mark[TOTAL] = mark[TOTAL] - (cost - left)
  mark[SOURCE] = string.sub(source, mark[FIRST], begin - 1) .. kept .. string.sub(source, place, mark[LAST])
  mark[FIRST], mark[LAST] = 1, #mark[SOURCE]
end
used = function(mark, rule)
  if (latest(mark)) <= now then return mark[TOTAL] end
  return math.max(mark[TOTAL], rule[BURST])
end
ends = function(mark, rule)
  return (latest(mark)) + rule[WINDOW] * 1000
end
encode = function(mark, rule)
  local size = mark[LAST] - mark[FIRST] + 1
  return struct.pack('>BBBI8BI8BI4', 148, 3, 207, rule[LIMIT], 207, mark[TOTAL], 198, size)
    .. string.sub(mark[SOURCE], mark[FIRST], mark[LAST])
end
