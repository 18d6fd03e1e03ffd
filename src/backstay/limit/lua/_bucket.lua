-- Purpose: the token bucket (and GCRA). Mirrors Bucket in algorithms.py. A mark (the state of one
-- rate) is {at, debt}. at: time in ms up to which refills are counted. debt: what was taken from the bucket and not yet
-- refilled, in the small units of algorithms.py (a hit of cost 1 takes rule[PRICE] units; rule[GAIN] units refill per
-- ms).
local AT, DEBT = 1, 2
decode = function(place)
  local at, debt = struct.unpack('>I8xI8', stored, place + 12)
  return { at, debt }, place + 29
end
fresh = function(rule)
  return { math.floor(now / 1000), 0 }
end
advance = function(mark, rule, at)
  local ms = math.floor(at / 1000)
  if ms > mark[AT] then
    mark[DEBT] = math.max(0, mark[DEBT] - (ms - mark[AT]) * rule[GAIN])
    mark[AT] = ms
  end
end
free_at = function(mark, rule, cost)
  local over = mark[DEBT] + (cost - rule[BURST]) * rule[PRICE]
  return math.max(now, (mark[AT] + math.max(0, math.ceil(over / rule[GAIN]))) * 1000)
end
charge = function(mark, rule, cost, at)
  advance(mark, rule, at)
  mark[DEBT] = mark[DEBT] + cost * rule[PRICE]
end
refund = function(mark, rule, cost, at)
  -- Refund nothing if there are later reservations: their times were computed with this cost.
  if math.floor((at > 0 and at or now) / 1000) < mark[AT] then return end
  mark[DEBT] = math.max(0, mark[DEBT] - cost * rule[PRICE])
end
used = function(mark, rule)
  return mark[AT] * 1000 <= now and math.ceil(mark[DEBT] / rule[PRICE]) or rule[BURST]
end
ends = function(mark, rule)
  return (mark[AT] + math.ceil(mark[DEBT] / rule[GAIN])) * 1000
end
encode = function(mark, rule)
  return struct.pack('>BBBI8BI8BI8', 148, 2, 207, rule[LIMIT], 207, mark[AT], 207, mark[DEBT])
end
