-- Purpose: append chunks to a job's log. A stored number is left unchanged.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job; 3 = fence; 4 = number of the first chunk; then chunks
-- Returns: 1; 0: the lease is not current

-- include: _shard.lua
local id, fence, first = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
-- include: _record.lua
-- include: _leased.lua

if not leased(id, fence, LOGGED) then return 0 end
local there, adds = {}, {}
local range = redis.call('ZRANGEBYSCORE', SHARD .. 'log:' .. id, first, first + #ARGV - 5, 'WITHSCORES')
for i = 2, #range, 2 do there[tonumber(range[i])] = true end
for i = 5, #ARGV do
  local seq = first + i - 5
  if not there[seq] then
    adds[#adds + 1] = seq
    adds[#adds + 1] = digits(seq) .. ' ' .. ARGV[i]
  end
end
each('ZADD', 'log:' .. id, adds)
return 1
