-- Purpose: read the outcomes of chains for which a new job of another shard is to wait. The job is not recorded as a
--   dependent of the chains.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); from 2 on = ids of chains
-- Returns: for each chain: '' (unknown), 'w' (not ended), '+<result>' (completed) or '-' (ended without a result)

-- include: _shard.lua
-- include: _record.lua

local outcomes = {}
for i = 2, #ARGV do
  local last = get_last_job(ARGV[i])
  local state = last and last.state
  if not state then
    outcomes[#outcomes + 1] = ''
  elseif state == 'c' then
    outcomes[#outcomes + 1] = '+' .. last.tail
  else
    outcomes[#outcomes + 1] = (state == 'f' or state == 'x' or state == 'k') and '-' or 'w'
  end
end
return outcomes
