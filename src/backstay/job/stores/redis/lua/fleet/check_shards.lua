-- Purpose: store the number of shards at the first use of a namespace; reject a caller with another number.
-- KEYS: 1 = the first shard's meta record; 2 = the absent key (docs/internals/glossary.md)
-- ARGV: 1 = the test clock's time in µs ('' in production); 2 = the caller's number of shards
-- Returns: 1
--          or error 'SHARDS <stored number>' if the caller's number of shards differs

-- include: _check_shards.lua
return 1
