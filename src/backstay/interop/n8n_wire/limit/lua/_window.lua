-- Purpose: refuse a caller whose window is not the window of the server's clock. `window`: ms; `bucket`: its number.
if now > not_after or math.floor(now / 1000 / window) ~= bucket then return reply('expired', now) end
