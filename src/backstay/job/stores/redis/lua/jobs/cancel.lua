-- Purpose: end a job that does not run; ask for the end of one that does.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; 3 = job; 4 = the reason, as a failure
-- Returns: {its state then, or ''; ready: type, number, …; the outbox: job, chain, value, …}

-- include: _shard.lua
local id, reason = ARGV[3], ARGV[4]
-- include: _record.lua
-- include: _moves.lua
-- include: _cancel.lua

local job = job_of(id)
if not job then return { '', {}, {} } end
withdraw(job, reason, message_of(reason))
free_keys()
settle()
flush(ARGV[2])
return { job.state, made_ready(), outbox }
