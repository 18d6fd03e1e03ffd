-- Purpose: cancel a run. A finished run is left unchanged.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; 3 = run; 4 = reason
-- Returns: {record or false, doc, outbox: job, chain, value, …}

-- include: _shard.lua
local id, reason = ARGV[3], ARGV[4]
-- include: _record.lua
-- include: _moves.lua
-- include: _run_jobs.lua
-- include: _cancel.lua
-- include: _cancel_run.lua

local run = run_of(id)
if not run then return { false, '', {} } end
cancel_run(run, reason)
flush(ARGV[2])
return { packed_run(run), redis.call('HGET', SHARD .. 'run-doc', id), outbox }
