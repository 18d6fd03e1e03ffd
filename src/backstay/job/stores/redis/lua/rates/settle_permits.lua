-- Purpose: count how many permits of a batch were used (take_permits.lua), and return the others to the rate. The jobs
-- have started before this script runs, so they count as started now. If the batch has ended, nothing changes: all of its
-- permits count as used.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = token of the batch
--       3 = key of the meter, without the prefix of the shard's keys
--       4 = µs between two starts
--       5 = starts allowed at once
--       6 = number of permits used
-- Returns: µs until one more job may start

-- include: _shard.lua
local token, key, interval, burst, used =
  ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
-- include: _meter.lua

local meter = read_meter(key, interval, burst)
for i, batch in ipairs(meter.batches) do
  if batch.token == token then
    table.remove(meter.batches, i)
    meter.used = math.min(batch.n, used)
    write_meter(meter)
    break
  end
end
return string.format('%.0f', find_wait(meter))
