-- Purpose: cancel a run and its unfinished jobs. A finished run is left unchanged.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = prefix of the Pub/Sub channels' names
--       3 = the run's id
--       4 = the reason, as text
-- Returns: an array of three:
--          1. the run's record, or false if the run is not stored
--          2. the run's document (inputs, job names, trigger)
--          3. outbox entries written by this call: id of a waiting job of another shard, the ended chain's id,
--            '+<result>' (success) or '-' (no success); …

-- include: _shard.lua
-- include: _when_full.lua
local id, reason = ARGV[3], ARGV[4]
-- include: _record.lua
-- include: _transitions.lua
-- include: _run_jobs.lua
-- include: _cancel.lua

local run = get_run(id)
if not run then return { false, '', {} } end
cancel_run(run, reason)
flush(ARGV[2])
return { encode_run(run), redis.call('HGET', SHARD .. 'run-doc', id), outbox }
