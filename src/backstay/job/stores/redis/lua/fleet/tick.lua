-- Purpose: enqueue the job of a cron entry, unless the entry already ticked at or after this time. A job of another shard is
-- noted here, enqueued there, then its note is deleted.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = shards; 3 = prefix of channels; 4 = name; 5 = at; 6 = the encoded job if it belongs to another
--       shard; 7 = id; 8 = record; 9 = doc; 10 = blockers
-- Returns: {1 or 0; its state if it is enqueued here} | error SHARDS n

-- include: _shard.lua
-- include: _agree.lua
local name, at, parts, id = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
-- include: _record.lua
-- include: _moves.lua
-- include: _create.lua

local last = redis.call('HGET', SHARD .. 'cron', name)
if last and tonumber(last) >= at then
  -- A repeated call, whose first reply was lost, gets the same answer.
  local mine = tonumber(last) == at and job_of(id)
  local noted = redis.call('HEXISTS', SHARD .. 'ticking', id) == 1
  return { (mine or noted) and 1 or 0, mine and mine.state or '' }
end
redis.call('HSET', SHARD .. 'cron', name, digits(at))
if parts ~= '' then
  -- By the job's id: the job of an earlier tick may not be enqueued yet.
  redis.call('HSET', SHARD .. 'ticking', id, parts)
  return { 1, '' }
end
local state = create(id, ARGV[8], ARGV[9], ARGV[10])
settle()
store_new()
flush(ARGV[3])
return { 1, state }
