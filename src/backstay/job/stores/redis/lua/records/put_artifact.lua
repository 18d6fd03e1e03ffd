-- Purpose: store a part of a job's artifact. The artifact is visible once its last part is stored, and replaces one of the
-- same name.
-- KEYS: 1 = the shard; 2 = nothing
-- ARGV: 1 = test clock; 2 = job; 3 = fence; 4 = name; 5 = part; 6 = '1': the last; 7 = {size, digest}; 8 = data
-- Returns: 1; 0: the lease is not current; -n: earlier parts are missing, n - 1 are stored
--
-- `artifacts:<job>` holds the metadata: under '=' and the name of a visible artifact, '~' and the name of an upload.

-- include: _shard.lua
local id, fence, name, part, last, about, data = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1',
  ARGV[7], ARGV[8]
-- include: _record.lua
-- include: _leased.lua

if not leased(id, fence, ARTIFACTS) then return 0 end
local book, whole, half = SHARD .. 'artifacts:' .. id, '=' .. name, '~' .. name
local key = SHARD .. 'artifact:' .. id .. ':'
-- Another digest or size starts a new upload.
local begun = redis.call('HGET', book, half) == about
local there = begun and redis.call('LLEN', key .. half) or 0
if not begun then
  local done = redis.call('HGET', book, whole)
  if done and string.sub(done, 9) == about then return 1 end
  if part == 0 then
    redis.call('DEL', key .. half)
    redis.call('HSET', book, half, about)
  end
end
if part > there then return -there - 1 end
if part == there then there = redis.call('RPUSH', key .. half, data) end
if last and part == there - 1 then
  redis.call('RENAME', key .. half, key .. whole)
  redis.call('HDEL', book, half)
  redis.call('HSET', book, whole, struct.pack('>I8', now) .. about)
end
return 1
