-- Purpose: let the script write on a server that has reached its maxmemory. For scripts that free memory, or that need
-- little and let work go on which frees memory. Redis refuses no write of a script whose first write needs no memory:
-- deleting the absent key (KEYS[2]) is such a write, and changes nothing.
redis.call('DEL', KEYS[2])
