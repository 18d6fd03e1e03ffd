-- Purpose: delete entries from the hash `unregistered`. It lists jobs that wait for a chain of another shard while that
--   shard may not know of it. The caller has registered these jobs there.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       from 2 on = the entries to delete, each '<id of the waiting job> <id of the chain it waits for>'
-- Returns: number of deleted entries

-- include: _shard.lua
-- include: _record.lua

local before = redis.call('HLEN', SHARD .. 'unregistered')
local entries = {}
for i = 2, #ARGV do entries[#entries + 1] = ARGV[i] end
call_batched('HDEL', 'unregistered', entries)
return before - redis.call('HLEN', SHARD .. 'unregistered')
