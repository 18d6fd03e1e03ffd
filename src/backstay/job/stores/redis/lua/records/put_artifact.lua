-- Purpose: store a part of a job's artifact. Once its last part is stored, the artifact is visible and replaces an
-- earlier one of the same name.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       2 = the job's id
--       3 = fence of the job's lease
--       4 = the artifact's name
--       5 = number of the part, counted from 0
--       6 = '1' if it is the last part, else '0'
--       7 = msgpack {size of the whole artifact in bytes, its digest}
--       8 = the part's data
-- Returns: 1 if the part is stored
--          or 0 if the fence is not that of the job's current lease
--          or -n if the part comes too early: only n - 1 parts are stored, so part n - 1 must be sent next
--
-- The hash `artifacts:<job>` holds metadata: field '=<name>' of a visible artifact, field '~<name>' of an unfinished
-- upload.

-- include: _shard.lua
local id, fence, name, part, last, about, data = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1',
  ARGV[7], ARGV[8]
-- include: _record.lua
-- include: _check_lease.lua

if not flag_if_leased(id, fence, ARTIFACTS) then return 0 end
local metadata, visible, upload = SHARD .. 'artifacts:' .. id, '=' .. name, '~' .. name
local key = SHARD .. 'artifact:' .. id .. ':'
-- An upload is identified by the artifact's size and digest (`about`). A call with another size or digest starts a new
-- upload.
local is_same_upload = redis.call('HGET', metadata, upload) == about
local parts = is_same_upload and redis.call('LLEN', key .. upload) or 0
if not is_same_upload then
  local stored = redis.call('HGET', metadata, visible)
  if stored and string.sub(stored, 9) == about then return 1 end
  if part == 0 then
    redis.call('DEL', key .. upload)
    redis.call('HSET', metadata, upload, about)
  end
end
if part > parts then return -parts - 1 end
if part == parts then parts = redis.call('RPUSH', key .. upload, data) end
if last and part == parts - 1 then
  redis.call('RENAME', key .. upload, key .. visible)
  redis.call('HDEL', metadata, upload)
  redis.call('HSET', metadata, visible, struct.pack('>I8', now) .. about)
end
return 1
