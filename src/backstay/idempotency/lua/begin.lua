-- Purpose: ask to run the call of a key. Depending on the key's state, the ticket starts the call, waits for the
--   running call, takes over a call whose lease has expired, or gets the stored outcome.
-- KEYS: 1 = the record of the idempotency key
--       2 = the stored outcome of its call
-- ARGV: 1 = a msgpack array of:
--         not_after    the engine time in µs after which the command has no effect
--         ticket       the id of this attempt
--         by           the caller's process
--         fingerprint  the fingerprint of the request; empty: do not compare
--         lease        the length of the lease in µs
--         inbox        the channel that gets a hint when the running call ends; empty: no hint wanted
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'begun', fence, since, until}  the ticket holds the lease from `since` to `until` (µs): run the call
--         {'running', recheck_after, by, since, until}  process `by` runs the call; ask again after recheck_after µs
--         {'done', failed, until, body}  the stored outcome `body`, kept until `until`; failed: it is an exception
--         {'mismatch', phase, since}  refused: the key's call, begun at `since` (µs), has another fingerprint
--         {'expired', now}  refused: not_after has passed, or the ticket was abandoned; now: engine time in µs

local _, not_after, ticket, by, fingerprint, lease, inbox = cmsgpack.unpack_limit(ARGV[1], 6, 1)

-- Fast path for the common case: a repeated call finds a stored outcome. This path does not read the key's record.
-- The outcome's first 16 characters are its expiry in µs, the next 64 its fingerprint; then follows the encoded reply.
local outcome = redis.call('GET', KEYS[2])
if outcome then
  local t = ARGV[2] and { '0', ARGV[2] } or redis.call('TIME')
  local fresh = t[1] * 1000000 + t[2] < (tonumber(string.sub(outcome, 1, 16)) or 0)
  if fresh and (fingerprint == '' or string.sub(outcome, 17, 80) == string.format('%-64s', fingerprint)) then return string.sub(outcome, 81) end
end
-- include: _clock.lua
-- include: _write.lua
-- include: _entry.lua

for _, g in ipairs(entry[GONE]) do
  if g[1] == ticket then return reply('expired', now) end
end

local phase = entry[PHASE]
if phase ~= 'idle' and fingerprint ~= '' and fingerprint ~= entry[PRINT] then
  return reply('mismatch', phase, entry[SINCE])
end
if phase == 'completed' or phase == 'failed' then
  return redis.error_reply('CORRUPT the stored outcome is missing or damaged')
end

if phase == 'running' and entry[UNTIL] > now then
  -- The ticket runs the call already: this is a resend after a lost reply. A resend never shortens the
  -- lease.
  if entry[TICKET] == ticket then
    entry[UNTIL] = math.max(entry[UNTIL], now + lease)
    return finish('begun', entry[FENCE], entry[SINCE], entry[UNTIL])
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
  return finish('running', after, entry[BY], entry[SINCE], entry[UNTIL])
end

local fence = math.max(entry[LAST] + 1, now)
entry[LAST], entry[PHASE], entry[TICKET], entry[BY], entry[FENCE] = fence, 'running', ticket, by, fence
entry[SINCE], entry[UNTIL], entry[PRINT] = now, now + lease, fingerprint
entry[WAITERS] = filter(entry[WAITERS], function(w) return w[1] ~= ticket end)
return finish('begun', fence, now, now + lease)
