-- Purpose: read a job, or the last job of its chain, and mark it so that its end is announced.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the job's id
--       3 = 'job' to watch this job, 'chain' to watch its chain
-- Returns: an array of:
--          1. id of the watched job
--          2. its record; false: no such job is stored
--          3. its doc: arguments, metadata, blockers
--          4. the time in µs at which its lease ends; false: it has no lease
--          5. ids of the chains for which it still waits, if they are in the set `waits:<job>` and not in the record

-- include: _shard.lua
local id, whole_chain = ARGV[2], ARGV[3] == 'chain'
-- include: _record.lua

local job = get_job(id)
if whole_chain then
  -- If the job is deleted, its id may still be the id of a chain: the first job can expire while the chain continues.
  local chain = job and chain_of(job) or id
  job = get_last_job(chain)
  id = job and job.id or chain
end
local raw = false
if job then
  local flag = whole_chain and CHAIN_WATCHED or JOB_WATCHED
  local is_final = job.state == 'c' or job.state == 'f' or job.state == 'x' or job.state == 'k'
  raw = redis.call('HGET', SHARD .. 'job', id)
  if not is_final and not has(job.flags, flag) then
-- include: _when_full.lua
    raw = string.sub(raw, 1, 38) .. string.char(job.flags + flag) .. string.sub(raw, 40)
    redis.call('HSET', SHARD .. 'job', id, raw)
  end
end
return { id, raw, redis.call('HGET', SHARD .. 'doc', id), redis.call('ZSCORE', SHARD .. 'lease', id),
  redis.call('SMEMBERS', SHARD .. 'waits:' .. id) }
