-- Purpose: end the script with the reply 'expired' if not_after has passed, or if the caller's window is not the
--   current window by the server's clock.
-- Expects the locals now and not_after (µs), window (the length of a window in ms), bucket (the number of the caller's
--   window since the epoch), and reply().
if now > not_after or math.floor(now / 1000 / window) ~= bucket then return reply('expired', now) end
