-- Purpose: append lines to a job's log. Lines are numbered; a number that is already stored is left unchanged.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the job's id
--       3 = fence of the job's lease
--       4 = number of the first line
--       from 5 on = encoded lines, with consecutive numbers
-- Returns: 1; 0 if the fence is not that of the job's current lease: nothing is stored

-- include: _shard.lua
local id, fence, first = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
-- include: _record.lua
-- include: _check_lease.lua

if not flag_if_leased(id, fence, LOGGED) then return 0 end
local stored, added = {}, {}
local range = redis.call('ZRANGEBYSCORE', SHARD .. 'log:' .. id, first, first + #ARGV - 5, 'WITHSCORES')
for i = 2, #range, 2 do stored[tonumber(range[i])] = true end
for i = 5, #ARGV do
  local seq = first + i - 5
  if not stored[seq] then
    added[#added + 1] = seq
    added[#added + 1] = format_int(seq) .. ' ' .. ARGV[i]
  end
end
call_batched('ZADD', 'log:' .. id, added)
return 1
