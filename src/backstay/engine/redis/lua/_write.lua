-- Purpose: define write_record(), which writes the record under KEYS[1] with a TTL in ms, even on a full server if the
--   record hardly grows. Expects `stored`, the record before this command, or false.
-- A server that has reached its maxmemory refuses SET, but no write of a script whose first write needs no memory, such
--   as PEXPIRE. So leases can be renewed and released while there is no memory for new ones. MAX_GROWTH is enough for a
--   tombstone, and not for a holder or a waiter.
-- Returns nil, or the server's refusal, which the script must return.
local MAX_GROWTH = 64
local function write_record(record, life)
  local refusal = redis.pcall('SET', KEYS[1], record, 'PX', life)
  if not refusal.err then return end
  if not stored or #record > #stored + MAX_GROWTH or not string.find(refusal.err, 'OOM', 1, true) then return refusal end
  redis.call('PEXPIRE', KEYS[1], life)
  redis.call('SET', KEYS[1], record, 'PX', life)
end
