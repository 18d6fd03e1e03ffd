-- Purpose: read the outcomes of chains that a new job of another shard waits for. Changes nothing.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; then chains
-- Returns: for each: '' (unknown), 'w' (open), '+<result>' (completed), or '-' (ended without a result)

-- include: _shard.lua
-- include: _record.lua

local answer = {}
for i = 2, #ARGV do
  local last = last_of(ARGV[i])
  local state = last and last.state
  if not state then
    answer[#answer + 1] = ''
  elseif state == 'c' then
    answer[#answer + 1] = '+' .. last.tail
  else
    answer[#answer + 1] = (state == 'f' or state == 'x' or state == 'k') and '-' or 'w'
  end
end
return answer
