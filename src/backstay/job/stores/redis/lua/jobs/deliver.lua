-- Purpose: chains of other shards have ended, and jobs here wait for them. May be sent twice: a blocker leaves a set.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; then: job, chain, '+<result>' or '-', …
-- Returns: {ready: type, number, …; the outbox: job, chain, value, …}

-- include: _shard.lua
-- include: _record.lua
-- include: _moves.lua

local ids = {}
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
fetch(ids)
for i = 3, #ARGV, 3 do
  local job = jobs[ARGV[i]]
  if job then resolve(job, ARGV[i + 1], ARGV[i + 2]) end
end
settle()
flush(ARGV[2])
return { made_ready(), outbox }
