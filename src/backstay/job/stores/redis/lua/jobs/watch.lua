-- Purpose: read a job, or the last job of its chain, and have its end announced from now on.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job; 3 = 'chain' or 'job'
-- Returns: {id, record or false, doc, end of its lease or false, open blockers}

-- include: _shard.lua
local id, whole = ARGV[2], ARGV[3] == 'chain'
-- include: _record.lua

local job = job_of(id)
if whole then
  -- The first job of a chain may be deleted while the chain continues.
  local chain = job and chain_of(job) or id
  job = last_of(chain)
  id = job and job.id or chain
end
local raw = false
if job then
  local flag = whole and CHAIN_WATCHED or WATCHED
  local over = job.state == 'c' or job.state == 'f' or job.state == 'x' or job.state == 'k'
  raw = redis.call('HGET', SHARD .. 'job', id)
  if not over and not has(job.flags, flag) then
    raw = string.sub(raw, 1, 38) .. string.char(job.flags + flag) .. string.sub(raw, 40)
    redis.call('HSET', SHARD .. 'job', id, raw)
  end
end
return { id, raw, redis.call('HGET', SHARD .. 'doc', id), redis.call('ZSCORE', SHARD .. 'lease', id),
  redis.call('SMEMBERS', SHARD .. 'waits:' .. id) }
