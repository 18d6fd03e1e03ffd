-- Purpose: add outputs to a job. An existing key gets the new value.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the job's id
--       3 = fence of the job's lease
--       from 4 on, two values for each output: key, value
-- Returns: 1; 0 if the fence is not that of the job's current lease: nothing is stored

-- include: _shard.lua
local id, fence = ARGV[2], tonumber(ARGV[3])
-- include: _record.lua
-- include: _check_lease.lua

if not flag_if_leased(id, fence, OUTPUTS) then return 0 end
local values = {}
for i = 4, #ARGV do values[#values + 1] = ARGV[i] end
call_batched('HSET', 'outputs:' .. id, values)
return 1
