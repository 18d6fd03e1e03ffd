-- Purpose: make jobs that were skipped because of a chain of another shard wait for it again.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = prefix of channels; then: job, chain, …
-- Returns: their dependents in other shards: job, chain, …

-- include: _shard.lua
-- include: _record.lua
-- include: _moves.lua
-- include: _retry.lua

local elsewhere, starting = {}, {}
for i = 3, #ARGV, 2 do
  local job, told = job_of(ARGV[i]), {}
  if job and wait_for(job, ARGV[i + 1], starting) then
    told = wait_again(job, starting)
  elseif job and job.state == 'b' then -- perhaps through an earlier call
    told = perhaps_untold(job)
  end
  for _, part in ipairs(told) do elsewhere[#elsewhere + 1] = part end
end
flush(ARGV[2])
return elsewhere
