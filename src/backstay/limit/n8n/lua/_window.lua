-- Purpose: a caller's window must be the one that the server's clock is in: `window` in ms, `bucket` its number.
if now > not_after or math.floor(now / 1000 / window) ~= bucket then return reply('expired', now) end
