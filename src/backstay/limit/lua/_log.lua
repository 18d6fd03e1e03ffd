-- Purpose: the sliding log, an exact sliding window. Mirrors Log in algorithms.py. A run holds all hits of one
-- millisecond: the time of its last hit and the sum of the costs. Runs stay packed in a string. They are decoded one by
-- one, only where their values are needed.
-- A mark (the state of one rate) is {total, last, cost, dead, runs}. total: cost of all hits that have not expired.
-- last, cost: time (µs) and cost of the newest run, which is not in runs. dead: how many bytes at the start of runs
-- have expired. runs: the older runs, packed, oldest first.
local TOTAL, LAST, COST, DEAD, RUNS = 1, 2, 3, 4, 5
local SHAPE, RUN, LARGEST, SPARSE = '>I7I3', 10, 16777215, 16
decode = function(place)
  local total, last, cost, dead, size = struct.unpack('>I8xI8xI8xI8xI4', stored, place + 12)
  return { total, last, cost, dead, string.sub(stored, place + 52, place + 51 + size) }, place + 52 + size
end
fresh = function(rule)
  return { 0, 0, 0, 0, '' }
end
local function clear(mark)
  mark[TOTAL], mark[LAST], mark[COST], mark[DEAD], mark[RUNS] = 0, 0, 0, 0, ''
end
advance = function(mark, rule, at)
  local gone = at - rule[WINDOW] * 1000
  if mark[LAST] <= gone then return clear(mark) end
  while mark[DEAD] < #mark[RUNS] do
    local when, cost = struct.unpack(SHAPE, mark[RUNS], mark[DEAD] + 1)
    if when > gone then return end
    mark[TOTAL], mark[DEAD] = mark[TOTAL] - cost, mark[DEAD] + RUN
  end
end
free_at = function(mark, rule, cost)
  local over, place, at = mark[TOTAL] + cost - rule[LIMIT], mark[DEAD], 0
  while over > 0 and place < #mark[RUNS] do
    local when, gone = struct.unpack(SHAPE, mark[RUNS], place + 1)
    over, place, at = over - gone, place + RUN, when
  end
  if over > 0 then at = mark[LAST] end
  return math.max(now, mark[LAST], at > 0 and at + rule[WINDOW] * 1000 or 0)
end
charge = function(mark, rule, cost, at)
  at = math.max(at, mark[LAST])
  local merged = cost
  if math.floor(mark[LAST] / 1000) == math.floor(at / 1000) and mark[COST] + cost <= LARGEST then
    merged = merged + mark[COST]
  elseif mark[COST] > 0 then
    mark[RUNS] = mark[RUNS] .. struct.pack(SHAPE, mark[LAST], mark[COST])
  end
  while merged > LARGEST do
    mark[RUNS], merged = mark[RUNS] .. struct.pack(SHAPE, at, LARGEST), merged - LARGEST
  end
  if mark[DEAD] * SPARSE > #mark[RUNS] then
    mark[RUNS], mark[DEAD] = string.sub(mark[RUNS], mark[DEAD] + 1), 0
  end
  mark[TOTAL], mark[LAST], mark[COST] = mark[TOTAL] + cost, at, merged
end
-- Give back `cost` units: remove the reservation that was made for the time `at` (µs). With `at` 0, remove the oldest
-- hits: the remaining hits expire later than the removed ones, so the log never admits too much.
refund = function(mark, rule, cost, at)
  local runs = string.sub(mark[RUNS], mark[DEAD] + 1) .. struct.pack(SHAPE, mark[LAST], mark[COST])
  local begin, til = 1, now
  if at > 0 then
    local ms = math.floor(at / 1000) * 1000
    begin, til = #runs + 1, ms + 999
    while begin > 1 and (struct.unpack(SHAPE, runs, begin - RUN)) >= ms do begin = begin - RUN end
  end
  local place, left, kept = begin, cost, ''
  while left > 0 and place < #runs do
    local when, had = struct.unpack(SHAPE, runs, place)
    if when > til then break end
    place = place + RUN
    if had > left then kept = struct.pack(SHAPE, when, had - left) end
    left = left - math.min(had, left)
  end
  runs = string.sub(runs, 1, begin - 1) .. kept .. string.sub(runs, place)
  if runs == '' then return clear(mark) end
  mark[TOTAL], mark[DEAD], mark[RUNS] = mark[TOTAL] - (cost - left), 0, string.sub(runs, 1, -RUN - 1)
  mark[LAST], mark[COST] = struct.unpack(SHAPE, runs, #runs - RUN + 1)
end
used = function(mark, rule)
  if mark[LAST] <= now then return mark[TOTAL] end
  return math.max(mark[TOTAL], rule[BURST])
end
ends = function(mark, rule)
  return mark[LAST] + rule[WINDOW] * 1000
end
encode = function(mark, rule)
  return struct.pack('>BBBI8BI8BI8BI8BI8BI4', 151, 3, 207, rule[LIMIT], 207, mark[TOTAL], 207, mark[LAST], 207, mark[COST],
    207, mark[DEAD], 198, #mark[RUNS]) .. mark[RUNS]
end
