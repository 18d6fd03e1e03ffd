-- Purpose: hold the jobs at the ends of these chains, in one order for all who do: the next statement sees them as they
-- are held, and not as they were before somebody else, whom this one waited for, changed them.
-- Parameters: space, flag (those that have it are left alone; 0: none are); array chains.
WITH
-- include: _chain_ends.sql
SELECT job.id FROM live CROSS JOIN LATERAL (
    SELECT id FROM backstay_job WHERE space = %(space)s AND id = live.id FOR NO KEY UPDATE) job
