-- Purpose: store a call's outcome and wake all waiters. Refused once another call has taken over.
-- KEYS: 1 = the key's record; 2 = the stored outcome
-- ARGV: 1 = {not_after, ticket, fence, ttl, failed, body}; 2 = test clock
-- Returns: {stored, until} | {lost, by} | {expired, now}

local _, not_after, ticket, fence, ttl, failed, body = cmsgpack.unpack_limit(ARGV[1], 6, 1)
-- include: _clock.lua
-- include: _entry.lua

entry[LAST] = math.max(entry[LAST], fence)
if entry[TICKET] ~= ticket then return done('lost', entry[BY]) end
if entry[PHASE] ~= 'running' then return done('stored', entry[UNTIL]) end -- a resend after a lost reply

for _, w in ipairs(entry[WAITERS]) do redis.call('PUBLISH', w[INBOX], w[1]) end
entry[PHASE], entry[UNTIL], entry[WAITERS] = failed and 'failed' or 'completed', now + ttl, {}
-- The stored outcome: its end, its fingerprint, and the encoded reply to a Begin. The body is encoded by hand, because
-- cmsgpack cannot pack bytes. The key expires when the outcome ends, so that a plain GET can be trusted; one
-- millisecond later, so that no script misses it.
local ready = '\148' .. cmsgpack.pack('done', failed, entry[UNTIL]) .. '\198' .. struct.pack('>I4', #body) .. body
local kept = string.format('%016.0f%-64s', entry[UNTIL], entry[PRINT]) .. ready
if ARGV[2] then
  redis.call('SET', KEYS[2], kept) -- a test clock is not the server's clock
else
  redis.call('SET', KEYS[2], kept, 'PXAT', string.format('%.0f', math.ceil(entry[UNTIL] / 1000) + 1))
end
return done('stored', entry[UNTIL])
