-- Purpose: delete entries from the outbox after they were delivered.
-- KEYS: 1 = the shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production)
--       from 2 on = the entries to delete, each '<id of the waiting job> <id of the ended chain>'
-- Returns: number of entries in ARGV, whether or not they were still stored

-- include: _shard.lua
-- include: _record.lua

local entries = {}
for i = 2, #ARGV do entries[#entries + 1] = ARGV[i] end
call_batched('HDEL', 'outbox', entries)
return #entries
