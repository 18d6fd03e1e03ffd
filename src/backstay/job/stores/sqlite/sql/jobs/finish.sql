-- Purpose: end attempts, by whoever holds their leases.

-- name: entries
-- Params: space, ids as JSON.
-- Returns: an Entry for each that is stored.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE space = ? AND id IN (SELECT value FROM json_each(?));

-- name: plain
-- Params: ids as JSON, space.
-- Returns: id, num, kind, state, fence, flags, keep of those that are stored: all that most ends need.
SELECT j.id, j.num, j.kind, j.state, j.fence, j.flags, j.keep
FROM json_each(?) f CROSS JOIN backstay_job j ON j.space = ? AND j.id = f.value;

-- name: together
-- Params: space, id of the job with the smallest fence, how many more there are, that fence.
-- Returns: the first one's num, ids and kinds (with commas between them) of those that run under these fences in a row
-- that begins with it, and whose end concerns nobody else; and whether their records stay for the same time.
SELECT a.num, group_concat(j.id), group_concat(j.kind), min(j.keep) = max(j.keep)
FROM backstay_job a CROSS JOIN backstay_job j NOT INDEXED ON j.num BETWEEN a.num AND a.num + ?3
WHERE a.space = ?1 AND a.id = ?2 AND j.space = ?1 AND j.state = 3 AND j.fence = j.num - a.num + ?4 AND j.flags & 263 = 0;

-- name: complete_row
-- Params: now, result, the first and the last number, whether their records go together: jobs in a row, whose result is
-- the same, and whose end concerns nobody else.
UPDATE backstay_job SET state = 4, finished = ?1, alarm = iif(?5 AND num > ?3, 0, ?1 + keep), error = NULL, result = ?2
WHERE num BETWEEN ?3 AND ?4;

-- name: complete
-- Params: finished, until when its record stays, follower, result, num.
UPDATE backstay_job SET state = 4, finished = ?, alarm = ?, follower = ?, error = NULL, result = ?
WHERE num = ?;

-- name: complete_all
-- Params: now, result, numbers as JSON: jobs whose result is the same, and whose end concerns nobody else.
UPDATE backstay_job SET state = 4, finished = ?1, alarm = ?1 + keep, error = NULL, result = ?2
WHERE num IN (SELECT value FROM json_each(?3));

-- name: end
-- Params: state, finished, until when its record stays, error, num.
UPDATE backstay_job SET state = ?, finished = ?, alarm = ?, error = ? WHERE num = ?;

-- name: again
-- Params: state, alarm, rank, due, attempt, snoozes, error, num.
UPDATE backstay_job SET state = ?, alarm = ?, rank = ?, due = ?, attempt = ?, snoozes = ?, error = ? WHERE num = ?;

-- name: free
-- Params: space, key, job: the job no longer has this unique key.
DELETE FROM backstay_job_unique WHERE space = ? AND key = ? AND job = ?;

-- name: parked_lane
-- Params: space, concurrency key, a lane.
-- Returns: the next lane in which a job of that key is parked.
SELECT min(lane) FROM backstay_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 8 AND lane > ?;

-- name: parked
-- Params: space, concurrency key, lane.
-- Returns: num, kind of the first that is parked there.
SELECT num, kind FROM backstay_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 8 AND lane = ?
ORDER BY rank, id LIMIT 1;

-- name: unpark
-- Params: num.
UPDATE backstay_job SET state = 2 WHERE num = ?;

-- name: waiting
-- Params: chains as JSON, space.
-- Returns: num, run, flags of each job that waits for one of these chains.
SELECT DISTINCT w.num, j.run, j.flags
FROM json_each(?) c CROSS JOIN backstay_job_wait w ON w.space = ? AND w.chain = c.value AND w.ended = 0
CROSS JOIN backstay_job j ON j.num = w.num ORDER BY w.num;

-- name: told
-- Params: ended, chains as JSON, space: everybody who waits for these chains has their end.
UPDATE backstay_job_wait SET ended = ?1, result = NULL
WHERE space = ?3 AND chain IN (SELECT value FROM json_each(?2)) AND ended = 0;

-- name: told_result
-- Params: ended, result, space, chain: the same for one chain, with what came of it.
UPDATE backstay_job_wait SET ended = ?, result = ? WHERE space = ? AND chain = ? AND ended = 0;

-- name: blocked
-- Params: numbers as JSON.
-- Returns: for each that is blocked: whether it still waits for something, and an Entry.
SELECT EXISTS (SELECT 1 FROM backstay_job_wait w INDEXED BY backstay_job_wait_open
        WHERE w.num = j.num AND w.ended = 0),
    j.num, j.id, j.kind, j.lane, j.state, j.due, j.priority, j.attempt, j.retries, j.snoozes, j.flags, j.fence,
    j.worker, j.keep, j.keep_failed, j.chain, j.run, j.ckey, j.uniq, j.error
FROM json_each(?) n CROSS JOIN backstay_job j ON j.num = n.value WHERE j.state = 1;

-- name: waits
-- Params: num.
-- Returns: a row, if it still waits for something.
SELECT 1 FROM backstay_job_wait INDEXED BY backstay_job_wait_open WHERE num = ? AND ended = 0 LIMIT 1;

-- name: bad
-- Params: num.
-- Returns: a row, if a blocker ended badly.
SELECT 1 FROM backstay_job_wait WHERE num = ? AND ended IN (2, 4) LIMIT 1;

-- name: failing
-- Params: num.
-- Returns: a row, if a blocker failed, or was skipped because one before it had.
SELECT 1 FROM backstay_job_wait INDEXED BY backstay_job_wait_failing WHERE num = ? AND ended = 4 LIMIT 1;

-- name: blame
-- Params: num: it is skipped because one before it failed.
UPDATE backstay_job SET flags = flags | 4096 WHERE num = ?;

-- name: unblock
-- Params: now, numbers as JSON: those that wait for nothing any more.
-- Returns: num, id, kind, run, attempt, state of each.
UPDATE backstay_job SET state = iif(due > ?1, 0, 2), alarm = iif(due > ?1, due, 0)
WHERE num IN (SELECT value FROM json_each(?2)) AND state = 1
    AND NOT EXISTS (SELECT 1 FROM backstay_job_wait w INDEXED BY backstay_job_wait_open
        WHERE w.num = backstay_job.num AND w.ended = 0)
RETURNING num, id, kind, run, attempt, state;
