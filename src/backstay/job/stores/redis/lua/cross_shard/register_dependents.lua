-- Purpose: register jobs of other shards as dependents of chains of this shard. Idempotent.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       from 2 on, two values for each registration: id of the waiting job, id of the chain
-- Returns: for each registration: 'w' (the chain has not ended; its end will be delivered), '+<result>' (it completed)
--            or '-' (it ended without a result, or it is unknown)

-- include: _shard.lua
-- include: _record.lua

local outcomes, records = {}, {}
for i = 2, #ARGV, 2 do
  local last = get_last_job(ARGV[i + 1])
  local state = last and last.state
  -- Dependents of an ended chain are stored too: if the chain is retried, they wait again.
  if last then
    redis.call('ZADD', SHARD .. 'awaiting:' .. ARGV[i + 1], '0', ARGV[i])
    if not has(last.flags, AWAITED) then
      last.flags = last.flags + AWAITED
      mark_changed(last)
    end
  end
  if state == 'c' then
    outcomes[#outcomes + 1] = '+' .. last.tail
  else
    outcomes[#outcomes + 1] = (not state or state == 'f' or state == 'x' or state == 'k') and '-' or 'w'
  end
end
for id, job in pairs(changed) do
  records[#records + 1] = id
  records[#records + 1] = encode_job(job)
end
call_batched('HSET', 'job', records)
return outcomes
