-- Purpose: enqueue the job of a cron entry for one of its times (a tick), unless the entry already ticked for this or a
-- later time. A job that belongs to another shard is stored in this shard's hash `cron-outbox` instead. The caller then
-- enqueues it in the other shard and deletes it from `cron-outbox` (ack_tick.lua).
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the caller's number of shards
--       3 = prefix of the Pub/Sub channels' names
--       4 = the cron entry's name
--       5 = the time in µs for which the entry ticks
--       6 = '' if the job belongs to this shard; otherwise the job as a msgpack array of id, record, doc and blockers
--       7 = the new job's id
--       8 = its record, encoded
--       9 = its doc (arguments, metadata and blockers, msgpack)
--       10 = its blockers, encoded (_create.lua)
-- Returns: {1 if this call or an earlier copy of it ticked, 0 if another call did; letter of the job's state, or '' if
--            the job is not enqueued in this shard}
--          or error 'SHARDS <stored number>' if the caller's number of shards differs

-- include: _shard.lua
-- include: _check_shards.lua
local name, at, remote_job, id = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
-- include: _record.lua
-- include: _transitions.lua
-- include: _create.lua

local last = redis.call('HGET', SHARD .. 'cron', name)
if last and tonumber(last) >= at then
  -- The entry has already ticked. If an earlier copy of this call did it and only its reply was lost, return that
  -- reply.
  local mine = tonumber(last) == at and get_job(id)
  local noted = redis.call('HEXISTS', SHARD .. 'cron-outbox', id) == 1
  return { (mine or noted) and 1 or 0, mine and mine.state or '' }
end
redis.call('HSET', SHARD .. 'cron', name, format_int(at))
if remote_job ~= '' then
  -- The hash field is the job's id, not the entry's name: the job of an earlier tick may still be stored there.
  redis.call('HSET', SHARD .. 'cron-outbox', id, remote_job)
  return { 1, '' }
end
local state = create(id, ARGV[8], ARGV[9], ARGV[10])
resolve_all()
write_new()
flush(ARGV[3])
return { 1, state }
