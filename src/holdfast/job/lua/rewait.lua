-- Purpose: jobs here that were skipped because of a chain elsewhere wait for it again.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; then: job, chain, …
-- Returns: who waits for those elsewhere: job, chain, …

-- include: _shard.lua
-- include: _record.lua
-- include: _moves.lua
-- include: _again.lua

local elsewhere, starting = {}, {}
for i = 3, #ARGV, 2 do
  local job = job_of(ARGV[i])
  if job and wait_for(job, ARGV[i + 1], starting) then
    for _, part in ipairs(wait_again(job, starting)) do elsewhere[#elsewhere + 1] = part end
  end
end
flush(ARGV[2])
return elsewhere
