-- Purpose: keep a call's outcome and tell all who wait. Refused once another has taken over.
-- KEYS: 1 = the key's record; 2 = what its call answered
-- ARGV: 1 = {not_after, ticket, fence, ttl, failed, body}; 2 = test clock
-- Returns: {stored, until} | {lost, by} | {expired, now}

local _, not_after, ticket, fence, ttl, failed, body = cmsgpack.unpack_limit(ARGV[1], 6, 1)
-- include: _clock.lua
-- include: _entry.lua

entry[LAST] = math.max(entry[LAST], fence)
if entry[TICKET] ~= ticket then return done('lost', entry[BY]) end
if entry[PHASE] ~= 'running' then return done('stored', entry[UNTIL]) end -- a resend: the first reply was lost

for _, w in ipairs(entry[WAITERS]) do redis.call('PUBLISH', w[INBOX], w[1]) end
entry[PHASE], entry[UNTIL], entry[WAITERS] = failed and 'failed' or 'completed', now + ttl, {}
-- How long it counts, what it is about, and the reply to whoever asks, by hand: cmsgpack packs no bytes. It goes by itself
-- when it counts no more, so that a plain GET may be believed; a millisecond later, so that no script misses it.
local ready = '\148' .. cmsgpack.pack('done', failed, entry[UNTIL]) .. '\198' .. struct.pack('>I4', #body) .. body
local kept = string.format('%016.0f%-64s', entry[UNTIL], entry[PRINT]) .. ready
if ARGV[2] then
  redis.call('SET', KEYS[2], kept) -- a test's clock is not the server's
else
  redis.call('SET', KEYS[2], kept, 'PXAT', string.format('%.0f', math.ceil(entry[UNTIL] / 1000) + 1))
end
return done('stored', entry[UNTIL])
