-- Purpose: define iso(us), which formats µs since the epoch as JavaScript does: ISO 8601 in UTC, with milliseconds.
--   Redis's Lua has no function for this.
local function iso(us)
  local ms = math.floor(us / 1000)
  local days, rest = math.floor(ms / 86400000), ms % 86400000
  -- In this calculation a year starts in March, so that the leap day is its last day. 400 years have 146097 days.
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  local seconds = math.floor(rest / 1000)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ', year, month, day,
    math.floor(seconds / 3600), math.floor(seconds / 60) % 60, seconds % 60, rest % 1000)
end
