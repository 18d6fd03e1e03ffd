-- Purpose: the stored reply of a worker channel. Decides whether this exchange is new, a replay of the last one, or its
-- second request with permits; rejects it if it is outdated or late. `store_reply` stores the new reply. Part of
-- exchange.lua, after its options are decoded.

-- The key that stores the reply to the last exchange of this worker channel, as msgpack: seq of the exchange; time
-- until which the reply is kept (µs); fence of the first claimed job; verdicts; ids of the claimed jobs; the waiting
-- claim. This last field is a table while the claim waits in the shard for a job, true after `enqueue` has handed it a
-- job (_direct_handoff.lua), and false if the claim does not wait. After a second request with permits, two fields
-- follow: how many of the jobs were claimed by the first request, and the fence of the first job of the second one.
local reply_key = SHARD .. 'reply:' .. channel
local stored = redis.call('GET', reply_key)
local previous = stored and { cmsgpack.unpack(stored) }
local is_replay, is_handed_off = false, false
if previous and previous[2] > now then
  if seq < previous[1] then return { cmsgpack.pack({ now, 'stale' }) } end
  is_handed_off = previous[6] == true and waiting_seq == previous[1]
  is_replay = is_handed_off or seq == previous[1]
end
-- permits: how many jobs of this shard the rates of other shards let start, by key of the meter.
local permits = {}
if batch then
  if is_replay and previous[7] then return { cmsgpack.pack({ now, 'spent' }) } end
  if not is_replay or now >= batch[1] then return { cmsgpack.pack({ now, 'late' }) } end
  is_replay = false
  for i = 2, #batch, 2 do permits[batch[i]] = batch[i + 1] end
end
if now > not_after and not is_replay then return { cmsgpack.pack({ now, batch and 'late' or 'expired' }) } end

-- Store the reply for 2 × lease, so that a resent exchange gets the same one. If the claim found no job and may wait,
-- it is stored as waiting: `enqueue` may then hand a new job directly to the worker (_direct_handoff.lua).
local function store_reply(fence, verdicts, ids)
  local waiting_claim = false
  if waiting and #ids == 0 then
    local inbox, duration, types, queues = unpack(waiting)
    waiting_claim = { now + duration, worker, lease, inbox, types }
    for _, queue in ipairs(queues) do
      redis.call('ZADD', SHARD .. 'idle:' .. queue, string.format('%.0f', now + duration), channel)
      redis.call('PEXPIRE', SHARD .. 'idle:' .. queue, string.format('%.0f', math.ceil(duration / 1000) + extra_ttl))
    end
  end
  local reply = { seq, now + 2 * lease, fence, verdicts, ids, waiting_claim }
  if batch then
    local all = previous[5]
    reply[3], reply[4], reply[7], reply[8] = previous[3], previous[4], #all, fence
    for _, id in ipairs(ids) do all[#all + 1] = id end
    reply[5] = all
  end
  redis.call('SET', reply_key, cmsgpack.pack(unpack(reply)), 'PX',
    string.format('%.0f', math.ceil(2 * lease / 1000) + extra_ttl))
end
