-- Purpose: cancel a job; a running job gets a cancellation request.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; 3 = job; 4 = the reason, as a failure
-- Returns: {new state, or '': not stored; ready: type, number, …; outbox: job, chain, value, …}

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
