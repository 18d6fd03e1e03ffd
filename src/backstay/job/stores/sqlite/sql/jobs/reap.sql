-- Purpose: find jobs whose lease expired; make scheduled jobs due.

-- name: ended
-- Params: space, now, limit.
-- Returns: a JobRecord for each running job whose lease expired.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE alarm > 0 AND space = ? AND state = 3 AND alarm <= ? ORDER BY alarm LIMIT ?;

-- name: due
-- Params: space, now, limit.
-- Returns: num, kind, id, run, attempt of scheduled jobs that are due.
SELECT num, kind, id, run, attempt FROM backstay_job WHERE alarm > 0 AND space = ? AND state = 0 AND alarm <= ?
ORDER BY alarm LIMIT ?;

-- name: ready
-- Params: num.
UPDATE backstay_job SET state = 2, alarm = 0 WHERE num = ?;
