-- Purpose: the fixed window. Mirrors Fixed in algorithms.py. A mark (the state of one rate)
-- is {index, count}. index: number of the latest window since the epoch. count: the sum of the costs of all hits in
-- this window.
local INDEX, COUNT = 1, 2
decode = function(place)
  local index, count = struct.unpack('>I8xI8', stored, place + 12)
  return { index, count }, place + 29
end
fresh = function(rule)
  return { math.floor(now / (rule[WINDOW] * 1000)), 0 }
end
advance = function(mark, rule, at)
  local index = math.floor(at / (rule[WINDOW] * 1000))
  if index > mark[INDEX] then mark[INDEX], mark[COUNT] = index, 0 end
end
free_at = function(mark, rule, cost)
  local index = mark[INDEX]
  if mark[COUNT] + cost > rule[LIMIT] then index = index + 1 end
  return math.max(now, index * rule[WINDOW] * 1000)
end
charge = function(mark, rule, cost, at)
  advance(mark, rule, at)
  mark[COUNT] = mark[COUNT] + cost
end
refund = function(mark, rule, cost, at)
  if math.floor((at > 0 and at or now) / (rule[WINDOW] * 1000)) == mark[INDEX] then
    mark[COUNT] = math.max(0, mark[COUNT] - cost)
  end
end
used = function(mark, rule)
  return mark[INDEX] * rule[WINDOW] * 1000 <= now and mark[COUNT] or rule[BURST]
end
ends = function(mark, rule)
  return (mark[INDEX] + 1) * rule[WINDOW] * 1000
end
encode = function(mark, rule)
  return struct.pack('>BBBI8BI8BI8', 148, 0, 207, rule[LIMIT], 207, mark[INDEX], 207, mark[COUNT])
end
