-- Purpose: the sliding counter. Mirrors Counter in algorithms.py. A mark (the state of one
-- rate) is {index, count, before}. index: number of the latest window. count: cost in this window. before: cost in the
-- window before it.
local INDEX, COUNT, BEFORE = 1, 2, 3
decode = function(place)
  local index, count, before = struct.unpack('>I8xI8xI8', stored, place + 12)
  return { index, count, before }, place + 38
end
fresh = function(rule)
  return { math.floor(now / (rule[WINDOW] * 1000)), 0, 0 }
end
advance = function(mark, rule, at)
  local index = math.floor(at / (rule[WINDOW] * 1000))
  if index > mark[INDEX] then
    mark[BEFORE] = index == mark[INDEX] + 1 and mark[COUNT] or 0
    mark[INDEX], mark[COUNT] = index, 0
  end
end
free_at = function(mark, rule, cost)
  local index, count, before, window = mark[INDEX], mark[COUNT], mark[BEFORE], rule[WINDOW]
  while true do
    local left = rule[LIMIT] - count - cost
    if left >= 0 then
      local into = before > 0 and window - math.floor(left * window / before) or 0
      if into < window then return math.max(now, (index * window + math.max(into, 0)) * 1000) end
    end
    index, count, before = index + 1, 0, count
  end
end
charge = function(mark, rule, cost, at)
  advance(mark, rule, at)
  mark[COUNT] = mark[COUNT] + cost
end
refund = function(mark, rule, cost, at)
  local behind = mark[INDEX] - math.floor((at > 0 and at or now) / (rule[WINDOW] * 1000))
  local here = behind == 0 and math.min(cost, mark[COUNT]) or 0
  local there = (behind == 1 or (behind == 0 and at == 0)) and cost - here or 0
  mark[COUNT], mark[BEFORE] = mark[COUNT] - here, math.max(0, mark[BEFORE] - there)
end
used = function(mark, rule)
  local window = rule[WINDOW]
  local into = math.floor(now / 1000) - mark[INDEX] * window
  if into < 0 then return rule[BURST] end
  return mark[COUNT] + math.ceil(mark[BEFORE] * (window - into) / window)
end
ends = function(mark, rule)
  return (mark[INDEX] + (mark[COUNT] > 0 and 2 or 1)) * rule[WINDOW] * 1000
end
encode = function(mark, rule)
  return struct.pack('>BBBI8BI8BI8BI8', 149, 1, 207, rule[LIMIT], 207, mark[INDEX], 207, mark[COUNT], 207, mark[BEFORE])
end
