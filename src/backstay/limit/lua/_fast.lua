-- Purpose: the fast path of an admitted hit, for a limit with one rate and a fixed window (algorithm 0) or a sliding
-- log (algorithm 3). If it can admit the hit, it charges the cost and returns the reply. Otherwise it changes nothing,
-- and hit.lua continues with the general path. A long log is not rewritten: this path reads only its first 256 bytes
-- and its expired runs (a run: all hits of one millisecond), overwrites the header and appends the new run.
if #rules == 1 and (algorithm == 0 or algorithm == 3) then
  local limit, window = rules[1][1], rules[1][2] * 1000
  local stored = redis.call('GETRANGE', KEYS[1], 0, 255)
  local size = #stored
  local here = now
  local head, seen, kind = '', 0, ''
  if size >= 41 then
    head, seen, kind = struct.unpack('>c3I8c3', stored)
    if seen > here then here = seen end
  end
  local known = head == '\147\1\207'
  -- With a test clock, the TTL is a day (in ms) longer: Redis expires keys by its own clock, not by the test's.
  local spare = ARGV[2] and 86400000 or 0
  if here > not_after then
    known = false -- the general path replies "expired"
  elseif algorithm == 0 and (size == 0 or (known and kind == '\145\148\0')) then
    local index, count = math.floor(here / window), cost
    if known then
      local theirs, taken = struct.unpack('>I8xI8', stored, 25)
      if theirs == index then count = taken + cost end
      if theirs > index then count = limit + 1 end
    end
    if count <= limit then
      local ends = (index + 1) * window - here
      redis.call('SET', KEYS[1], struct.pack('>BBBI8BBBBI8BI8BI8', 147, 1, 207, here, 145, 148, 0, 207, limit, 207, index,
        207, count), 'PX', string.format('%.0f', math.ceil(ends / 1000) + spare))
      return '\151' .. cmsgpack.pack('admitted', here, 0, count, limit - count, ends, 0)
    end
  elseif algorithm == 3 and cost <= 16777215 and (size == 0 or (known and size >= 64 and kind == '\145\151\3')) then
    local total, last, last_cost, dead, length = 0, 0, 0, 0, 0
    if known then total, last, last_cost, dead, length = struct.unpack('>I8xI8xI8xI8xI4', stored, 25) end
    local whole, gone = length <= 192, here - window
    if last <= gone then
      total, last, last_cost, dead, length, whole, stored = 0, 0, 0, 0, 0, true, ''
    end
    local chunk, place = stored, 65 + dead
    while dead < length do
      if place + 9 > #chunk then chunk, place = redis.call('GETRANGE', KEYS[1], 64 + dead, 223 + dead), 1 end
      local at, had = struct.unpack('>I7I3', chunk, place)
      if at > gone then break end
      total, dead, place = total - had, dead + 10, place + 10
    end
    total = total + cost
    if last <= here and total <= limit then
      local merged, push = cost, ''
      if math.floor(last / 1000) == math.floor(here / 1000) and last_cost + cost <= 16777215 then
        merged = last_cost + cost
      elseif last_cost > 0 then
        push = struct.pack('>I7I3', last, last_cost)
      end
      local cut = dead * 16 > length + #push
      if whole or not cut then
        local runs = ''
        if whole then
          runs = string.sub(stored, 65 + (cut and dead or 0), 64 + length)
          length = #runs
          if cut then dead = 0 end
        end
        local header = struct.pack('>BBBI8BBBBI8BI8BI8BI8BI8BI4', 147, 1, 207, here, 145, 151, 3, 207, limit, 207, total, 207,
          here, 207, merged, 207, dead, 198, length + #push)
        local life = string.format('%.0f', 2 * window / 1000 + spare)
        if whole then
          redis.call('SET', KEYS[1], header .. runs .. push, 'PX', life)
        else
          redis.call('SETRANGE', KEYS[1], 0, header)
          if push ~= '' then redis.call('APPEND', KEYS[1], push) end
          -- A hit expires one window after it was made. The TTL is two windows. Divide the time into fixed windows: a
          -- TTL set at the first hit in one of them outlasts all hits in it. So set it only at the first hit.
          if math.floor(last / window) ~= math.floor(here / window) then redis.call('PEXPIRE', KEYS[1], life) end
        end
        return '\151' .. cmsgpack.pack('admitted', here, 0, total, limit - total, window, 0)
      end
    end
  end
end
