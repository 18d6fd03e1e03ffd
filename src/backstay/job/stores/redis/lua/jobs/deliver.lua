-- Purpose: apply the ends of chains of other shards to jobs of this shard. Idempotent: it removes blockers from a set.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; then: job, chain, '+<result>' or '-', …
-- Returns: {ready: type, number, …; outbox: job, chain, value, …}

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
