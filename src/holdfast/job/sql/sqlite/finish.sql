-- Purpose: end attempts, by whoever holds their leases.

-- name: entries
-- Params: space, ids as JSON.
-- Returns: an Entry for each that is stored.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM holdfast_job WHERE space = ? AND id IN (SELECT value FROM json_each(?));

-- name: plain
-- Params: ids as JSON, space.
-- Returns: id, num, kind, state, fence, flags, keep of those that are stored: all that most ends need.
SELECT j.id, j.num, j.kind, j.state, j.fence, j.flags, j.keep
FROM json_each(?) f CROSS JOIN holdfast_job j ON j.space = ? AND j.id = f.value;

-- name: together
-- Params: space, id of the job with the smallest fence, how many more there are, that fence.
-- Returns: the first one's num, ids and kinds (with commas between them) of those that run under these fences in a row
-- that begins with it, and whose end concerns nobody else; and whether their records stay for the same time.
SELECT a.num, group_concat(j.id), group_concat(j.kind), min(j.keep) = max(j.keep)
FROM holdfast_job a CROSS JOIN holdfast_job j NOT INDEXED ON j.num BETWEEN a.num AND a.num + ?3
WHERE a.space = ?1 AND a.id = ?2 AND j.space = ?1 AND j.state = 3 AND j.fence = j.num - a.num + ?4 AND j.flags & 263 = 0;

-- name: complete_row
-- Params: now, result, the first and the last number, whether their records go together: jobs in a row, whose result is
-- the same, and whose end concerns nobody else.
UPDATE holdfast_job SET state = 4, finished = ?1, alarm = iif(?5 AND num > ?3, 0, ?1 + keep), error = NULL, result = ?2
WHERE num BETWEEN ?3 AND ?4;

-- name: complete
-- Params: finished, until when its record stays, follower, result, num.
UPDATE holdfast_job SET state = 4, finished = ?, alarm = ?, follower = ?, error = NULL, result = ?
WHERE num = ?;

-- name: complete_all
-- Params: now, result, numbers as JSON: jobs whose result is the same, and whose end concerns nobody else.
UPDATE holdfast_job SET state = 4, finished = ?1, alarm = ?1 + keep, error = NULL, result = ?2
WHERE num IN (SELECT value FROM json_each(?3));

-- name: end
-- Params: state, finished, until when its record stays, error, num.
UPDATE holdfast_job SET state = ?, finished = ?, alarm = ?, error = ? WHERE num = ?;

-- name: again
-- Params: state, alarm, rank, due, attempt, snoozes, error, num.
UPDATE holdfast_job SET state = ?, alarm = ?, rank = ?, due = ?, attempt = ?, snoozes = ?, error = ? WHERE num = ?;

-- name: free
-- Params: space, key, job: the job no longer has this unique key.
DELETE FROM holdfast_job_unique WHERE space = ? AND key = ? AND job = ?;

-- name: parked_lane
-- Params: space, concurrency key, a lane.
-- Returns: the next lane in which a job of that key is parked.
SELECT min(lane) FROM holdfast_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 8 AND lane > ?;

-- name: parked
-- Params: space, concurrency key, lane.
-- Returns: num, kind of the first that is parked there.
SELECT num, kind FROM holdfast_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 8 AND lane = ?
ORDER BY rank, id LIMIT 1;

-- name: unpark
-- Params: num.
UPDATE holdfast_job SET state = 2 WHERE num = ?;

-- name: dependents
-- Params: space, chain.
-- Returns: an Entry for each job that waits for this chain.
SELECT j.num, j.id, j.kind, j.lane, j.state, j.due, j.priority, j.attempt, j.retries, j.snoozes, j.flags, j.fence,
    j.worker, j.keep, j.keep_failed, j.chain, j.run, j.ckey, j.uniq, j.error
FROM holdfast_job_wait w CROSS JOIN holdfast_job j ON j.num = w.num
WHERE w.space = ? AND w.chain = ? AND w.ended = 0 ORDER BY w.num;

-- name: told
-- Params: ended, result, space, chain: everybody who waits for this chain has its end.
UPDATE holdfast_job_wait SET ended = ?, result = ? WHERE space = ? AND chain = ? AND ended = 0;

-- name: waits
-- Params: num.
-- Returns: a row, if it still waits for something.
SELECT 1 FROM holdfast_job_wait WHERE num = ? AND ended = 0 LIMIT 1;

-- name: bad
-- Params: num.
-- Returns: a row, if a blocker ended badly, and nobody forgave that.
SELECT 1 FROM holdfast_job_wait WHERE num = ? AND ended = 2 LIMIT 1;

-- name: unblock
-- Params: state, alarm, num: it waits for nothing any more.
UPDATE holdfast_job SET state = ?, alarm = ? WHERE num = ?;
