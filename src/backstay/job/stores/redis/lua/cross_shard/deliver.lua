-- Purpose: tell jobs of this shard that chains of other shards, for which they wait, have ended. Releases or skips
-- these jobs. Idempotent: an outcome that is already recorded is left unchanged.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = prefix of the Pub/Sub channels' names
--       from 3 on, three values for each delivery: id of the waiting job, id of the ended chain, '+<result>' (the
--         chain completed) or '-' (no success)
-- Returns: an array of two lists:
--          1. two values for each type of which jobs became pending: the type, the number of these jobs
--          2. three values for each outbox entry that this call wrote: id of a waiting job of another shard, id of the
--            ended chain, '+<result>' (the chain completed) or '-' (no success)

-- include: _shard.lua
-- include: _record.lua
-- include: _transitions.lua

local ids = {}
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
fetch(ids)
for i = 3, #ARGV, 3 do
  local job = jobs[ARGV[i]]
  if job then resolve(job, ARGV[i + 1], ARGV[i + 2]) end
end
resolve_all()
flush(ARGV[2])
return { list_ready(), outbox }
