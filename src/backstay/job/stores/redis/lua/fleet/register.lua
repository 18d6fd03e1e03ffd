-- Purpose: register jobs of other shards as dependents of chains of this shard. Idempotent.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; then: job, chain, …
-- Returns: for each: 'w' (open: its end will be delivered), '+<result>' (completed), or '-' (ended without a result, or
--          unknown)

-- include: _shard.lua
-- include: _record.lua

local answer, records = {}, {}
for i = 2, #ARGV, 2 do
  local last = last_of(ARGV[i + 1])
  local state = last and last.state
  -- Dependents are stored after the end too, since the chain may be retried.
  if last then
    redis.call('ZADD', SHARD .. 'awaiting:' .. ARGV[i + 1], '0', ARGV[i])
    if not has(last.flags, AWAITED) then
      last.flags = last.flags + AWAITED
      touch(last)
    end
  end
  if state == 'c' then
    answer[#answer + 1] = '+' .. last.tail
  else
    answer[#answer + 1] = (not state or state == 'f' or state == 'x' or state == 'k') and '-' or 'w'
  end
end
for id, job in pairs(changed) do
  records[#records + 1] = id
  records[#records + 1] = packed(job)
end
each('HSET', 'job', records)
return answer
