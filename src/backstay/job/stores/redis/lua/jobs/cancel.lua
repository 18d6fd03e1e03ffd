-- Purpose: cancel a job. A running job only gets a cancellation request.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = prefix of the Pub/Sub channels' names
--       3 = the job's id
--       4 = the reason: a `Failure` as msgpack
-- Returns: an array of three:
--          1. letter of the job's new state, or '' if the job is not stored
--          2. jobs that became pending, by type: type, count, type, count, …
--          3. outbox entries written by this call: id of a waiting job of another shard, the ended chain's id,
--            '+<result>' (success) or '-' (no success); …

-- include: _shard.lua
-- include: _when_full.lua
local id, reason = ARGV[3], ARGV[4]
-- include: _record.lua
-- include: _transitions.lua
-- include: _run_jobs.lua
-- include: _cancel.lua

local job = get_job(id)
if not job then return { '', {}, {} } end
cancel_job(job, reason, read_message(reason))
unpark_freed()
resolve_all()
flush(ARGV[2])
return { job.state, list_ready(), outbox }
