-- Purpose: read the counts, settings and oldest pending jobs of all queues.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock
-- Returns: {counts: letter of the state and queue, number, …; settings: letter of the setting and queue, value, …; oldest:
--          queue, due time of its oldest pending job, …}

-- include: _shard.lua
-- include: _record.lua

local numbers, oldest = redis.call('HGETALL', SHARD .. 'count'), {}
for i = 1, #numbers, 2 do
  if string.sub(numbers[i], 1, 1) == 'p' then
    local queue, heads, since = string.sub(numbers[i], 2), {}, nil
    for _, lane in ipairs(redis.call('SMEMBERS', SHARD .. 'lanes:' .. queue)) do
      heads[#heads + 1] = redis.call('ZRANGE', SHARD .. 'lane:' .. lane, 0, 0)[1]
    end
    heads[#heads + 1] = redis.call('ZRANGE', SHARD .. 'parked-since:' .. queue, 0, 0)[1]
    fetch(heads)
    for _, id in ipairs(heads) do
      if jobs[id] then since = math.min(since or jobs[id].due, jobs[id].due) end
    end
    oldest[#oldest + 1] = queue
    oldest[#oldest + 1] = digits(since or 0)
  end
end
return { numbers, redis.call('HGETALL', SHARD .. 'queues'), oldest }
