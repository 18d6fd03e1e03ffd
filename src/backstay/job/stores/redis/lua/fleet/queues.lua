-- Purpose: read the counts, settings and oldest pending jobs of all queues.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
-- Returns: an array of three lists:
--          1. two values for each count: '<letter of a state (_record.lua)><queue>', number of jobs
--          2. two values for each setting. Of a paused queue: 'p<queue>', '1'. Of a queue with a rate limit:
--            'r<queue>', '<µs between two starts> <starts allowed at once> <name of the rate bucket>'
--          3. two values for each queue with a count of pending jobs: queue, due time in µs of its oldest pending job
--            (0: none)

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
    oldest[#oldest + 1] = format_int(since or 0)
  end
end
return { numbers, redis.call('HGETALL', SHARD .. 'queues'), oldest }
