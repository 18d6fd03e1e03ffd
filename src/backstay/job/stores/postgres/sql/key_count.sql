-- Purpose: how many jobs of each key run. Whoever asks holds the keys, from an earlier statement on.
-- Parameters: space; array keys.
-- Returns: key, count.
SELECT n.key, (
    SELECT count(*) FROM backstay_job WHERE space = %(space)s AND key = n.key AND key <> '' AND state = 'running')
FROM unnest(%(keys)b) AS n (key)
