-- Purpose: meters. A meter is the state of a rate limit (GCRA). It is stored in the home shard of the rate, and only
-- scripts of that shard change it. Expects SHARD, now and extra_ttl (_shard.lua).
--
-- Another shard starts jobs with permits (take_permits.lua): the home shard counts a batch of permits against the rate,
-- the other shard starts at most as many jobs, and settle_permits.lua then counts how many it has started. In between,
-- the home shard does not know when they start. It knows the latest time at which they may: the end of the batch.
--
-- The value of a meter's key is text: the time from which on the rate is fully available (`tat`), then, for each batch
-- that is not settled, its token, its number of permits, and its end.

-- If only unsettled permits keep a job from starting, the worker claims again after this time (µs).
local PERMIT_WAIT = 15000

-- Return a meter. `interval`: µs between two starts. `burst`: starts allowed at once. Permits of a batch that was not
-- settled before its end are lost: they count as used at that time.
local function read_meter(key, interval, burst)
  local meter = { key = key, interval = interval, burst = burst, used = 0, batches = {} }
  local tat, rest = string.match(redis.call('GET', SHARD .. key) or '0', '^(%d+)(.*)$')
  meter.tat = tonumber(tat)
  for token, n, stop in string.gmatch(rest, ' (%x+) (%d+) (%d+)') do
    local batch = { token = token, n = tonumber(n), stop = tonumber(stop) }
    if batch.stop > now then
      meter.batches[#meter.batches + 1] = batch
    else
      meter.tat = math.max(meter.tat, batch.stop) + batch.n * interval
    end
  end
  return meter
end

-- Return the time from which on the rate is fully available, if all permits are used as late as possible. `used`: how
-- many jobs this script starts.
local function find_latest_tat(meter)
  local tat = math.max(meter.tat, now) + meter.used * meter.interval
  for _, batch in ipairs(meter.batches) do tat = math.max(tat, batch.stop) + batch.n * meter.interval end
  return tat
end

-- Return how many more jobs may start now.
local function count_free(meter)
  local room = meter.burst * meter.interval - (find_latest_tat(meter) - now)
  return math.max(0, math.floor(room / meter.interval))
end

-- Return the µs until one more job may start, if all permits are used now.
local function find_wait(meter)
  local tat = math.max(meter.tat, now) + meter.used * meter.interval
  for _, batch in ipairs(meter.batches) do tat = tat + batch.n * meter.interval end
  return math.max(#meter.batches > 0 and PERMIT_WAIT or 1, tat + meter.interval - meter.burst * meter.interval - now)
end

local function write_meter(meter)
  local tat = meter.used > 0 and math.max(meter.tat, now) + meter.used * meter.interval or meter.tat
  local parts = { string.format('%.0f', tat) }
  for _, batch in ipairs(meter.batches) do
    parts[#parts + 1] = string.format(' %s %.0f %.0f', batch.token, batch.n, batch.stop)
  end
  local ttl = math.ceil((find_latest_tat(meter) - now) / 1000) + 1 + extra_ttl
  redis.call('SET', SHARD .. meter.key, table.concat(parts), 'PX', string.format('%.0f', ttl))
end
