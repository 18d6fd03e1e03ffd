-- Purpose: take permits from a rate limit whose home is this shard, so that jobs of another shard may start. A permit
-- that is not used before its batch ends is lost.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = token of the batch, hexadecimal
--       3 = key of the meter, without the prefix of the shard's keys
--       4 = µs between two starts
--       5 = starts allowed at once
--       6 = largest number of permits to take
--       7 = µs until the batch ends
-- Returns: {number of permits taken, µs until one more job may start}

-- include: _shard.lua
local token, key, interval, burst, want, life =
  ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
-- include: _meter.lua

-- A process that dies leaves a batch behind until it ends. This bounds the number of such batches.
local MAX_BATCHES = 64

local meter = read_meter(key, interval, burst)
local n = #meter.batches < MAX_BATCHES and math.min(count_free(meter), want) or 0
if n > 0 then
  meter.batches[#meter.batches + 1] = { token = token, n = n, stop = now + life }
  write_meter(meter)
end
return { n, string.format('%.0f', find_wait(meter)) }
