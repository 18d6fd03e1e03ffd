-- Purpose: store the outcome of a call and wake all waiters. Refused if another call has taken over.
-- KEYS: 1 = the record of the idempotency key
--       2 = the stored outcome of its call
-- ARGV: 1 = a msgpack array of:
--         not_after  the engine time in µs after which the command has no effect
--         ticket     the ticket that runs the call
--         fence      the fence of the call's lease; the record's last fence becomes at least this
--         ttl        how long the outcome is stored, in µs
--         failed     true: the outcome is an exception
--         body       the encoded outcome
--       2 = the time of a test clock in µs (absent in production)
-- Returns: a msgpack array, one of:
--         {'stored', until}  the outcome is stored until this time in µs
--         {'lost', by}  not stored: process `by` has taken over the call; empty: no call runs
--         {'expired', now}  nothing was changed: not_after has passed; now: the engine time in µs

local _, not_after, ticket, fence, ttl, failed, body = cmsgpack.unpack_limit(ARGV[1], 6, 1)
-- include: _clock.lua
-- include: _write.lua
-- include: _entry.lua

entry[LAST] = math.max(entry[LAST], fence)
if entry[TICKET] ~= ticket then return finish('lost', entry[BY]) end
if entry[PHASE] ~= 'running' then return finish('stored', entry[UNTIL]) end -- a resend after a lost reply

local waiters = entry[WAITERS]
entry[PHASE], entry[UNTIL], entry[WAITERS] = failed and 'failed' or 'completed', now + ttl, {}
-- The stored outcome consists of its expiry in µs (16 digits), its fingerprint (64 characters), and the encoded reply
-- to a later call with this idempotency key (command Begin). The outcome in this reply is encoded by hand, because cmsgpack cannot pack bytes.
-- The Redis key KEYS[2] expires when the outcome does, so a client may read it with a plain GET. The key expires up to
-- two milliseconds later than the outcome, so that a script never misses an outcome that is still valid.
local ready = '\148' .. cmsgpack.pack('done', failed, entry[UNTIL]) .. '\198' .. struct.pack('>I4', #body) .. body
local outcome = string.format('%016.0f%-64s', entry[UNTIL], entry[PRINT]) .. ready
if ARGV[2] then
  redis.call('SET', KEYS[2], outcome) -- keys expire by the server's clock, not by a test clock
else
  redis.call('SET', KEYS[2], outcome, 'PXAT', string.format('%.0f', math.ceil(entry[UNTIL] / 1000) + 1))
end
for _, w in ipairs(waiters) do redis.call('PUBLISH', w[INBOX], w[1]) end
return finish('stored', entry[UNTIL])
