-- Purpose: start the call, wait for the running one, take over an expired one, or return the stored outcome.
-- KEYS: 1 = the key's record; 2 = the stored outcome
-- ARGV: 1 = {not_after, ticket, by, fingerprint, lease, inbox}; 2 = test clock
-- Returns: {begun, fence, since, until} | {running, recheck_after, by, since, until} | {done, failed, until, body} |
--          {mismatch, phase, since} | {expired, now}

local _, not_after, ticket, by, fingerprint, lease, inbox = cmsgpack.unpack_limit(ARGV[1], 6, 1)

-- Fast path for a repeated call that finds a stored outcome, which is the common case. It does not read the record.
local kept = redis.call('GET', KEYS[2])
if kept then
  local t = ARGV[2] and { '0', ARGV[2] } or redis.call('TIME')
  local fresh = t[1] * 1000000 + t[2] < (tonumber(string.sub(kept, 1, 16)) or 0)
  if fresh and (fingerprint == '' or string.sub(kept, 17, 80) == string.format('%-64s', fingerprint)) then return string.sub(kept, 81) end
end
-- include: _clock.lua
-- include: _entry.lua

for _, g in ipairs(entry[GONE]) do
  if g[1] == ticket then return reply('expired', now) end
end

local phase = entry[PHASE]
if phase ~= 'idle' and fingerprint ~= '' and fingerprint ~= entry[PRINT] then
  return reply('mismatch', phase, entry[SINCE])
end
if phase == 'completed' or phase == 'failed' then
  return redis.error_reply('CORRUPT what was kept beside the record is gone, or damaged')
end

if phase == 'running' and entry[UNTIL] > now then
  -- A resend after a lost reply. It may arrive late, so it never shortens the lease.
  if entry[TICKET] == ticket then
    entry[UNTIL] = math.max(entry[UNTIL], now + lease)
    return done('begun', entry[FENCE], entry[SINCE], entry[UNTIL])
  end
  local waiters = entry[WAITERS]
  local position = #waiters
  for i, w in ipairs(waiters) do
    if w[1] == ticket then
      position = i - 1
      break
    end
  end
  local after = math.min(entry[UNTIL] - now + SLACK + position * STAGGER, RECHECK)
  if inbox == '' or position >= MAX_WAITERS then
    return reply('running', after, entry[BY], entry[SINCE], entry[UNTIL])
  end
  waiters[position + 1] = { ticket, inbox, now + LIFE }
  return done('running', after, entry[BY], entry[SINCE], entry[UNTIL])
end

local fence = math.max(entry[LAST] + 1, now)
entry[LAST], entry[PHASE], entry[TICKET], entry[BY], entry[FENCE] = fence, 'running', ticket, by, fence
entry[SINCE], entry[UNTIL], entry[PRINT] = now, now + lease, fingerprint
entry[WAITERS] = keep(entry[WAITERS], function(w) return w[1] ~= ticket end)
return done('begun', fence, now, now + lease)
