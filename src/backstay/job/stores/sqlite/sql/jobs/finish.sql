-- Purpose: end the attempts of jobs, free keys, and release or skip the jobs that wait for an ended one.

-- name: records
-- Params: space (the namespace's number), ids of jobs as a JSON array.
-- Returns: the columns of JobRecord (columns.py) for each of these jobs that is stored.
SELECT num, id, kind, lane, state, due, priority, attempt, retries, snoozes, flags, fence, worker, keep, keep_failed,
    chain, run, ckey, uniq, error
FROM backstay_job WHERE space = ? AND id IN (SELECT value FROM json_each(?));

-- name: plain
-- Params: ids of jobs as a JSON array, space (the namespace's number).
-- Returns: id, num (row number), kind, state, fence, flags, keep of each of these jobs that is stored. These columns
-- are enough to complete a job whose end affects no other row: it has no dependents, no run and no key.
SELECT j.id, j.num, j.kind, j.state, j.fence, j.flags, j.keep
FROM json_each(?) f CROSS JOIN backstay_job j ON j.space = ? AND j.id = f.value;

-- name: consecutive
-- Finds out whether `complete_range` can complete the jobs that a worker finished together.
-- Params: space (the namespace's number), id of the first job (the one with the smallest fence), number of further
-- jobs, fence of the first job.
-- Returns: num of the first job; the ids of all these jobs, separated by commas; their kinds, separated by commas;
-- whether all have the same retention (`keep`). The further jobs are those with the next numbers (`num`) and the next
-- fences. A job is left out if it is not running, or if it has a flag of END_HAS_EFFECTS (263): its end affects
-- watchers, dependents, a run or a key.
SELECT a.num, group_concat(j.id), group_concat(j.kind), min(j.keep) = max(j.keep)
FROM backstay_job a CROSS JOIN backstay_job j NOT INDEXED ON j.num BETWEEN a.num AND a.num + ?3
WHERE a.space = ?1 AND a.id = ?2 AND j.space = ?1 AND j.state = 3 AND j.fence = j.num - a.num + ?4
    AND j.flags & 263 = 0;

-- name: complete_range
-- Completes all jobs in a range of numbers (`num`) with one result. None of them has a flag of END_HAS_EFFECTS. If all
-- have the same retention, only the first job gets an alarm, the time of its deletion. The further jobs get alarm 0 and
-- are deleted together with the first one.
-- Params: now (µs), result, first number, last number, whether all have the same retention (1 or 0).
UPDATE backstay_job SET state = 4, finished = ?1, alarm = iif(?5 AND num > ?3, 0, ?1 + keep), error = NULL, result = ?2
WHERE num BETWEEN ?3 AND ?4;

-- name: complete
-- Completes a job.
-- Params: now (µs), alarm (µs, when its row may be deleted; 0: with its run), id of the job that continues its chain
-- ('': none), result, num of the job.
UPDATE backstay_job SET state = 4, finished = ?, alarm = ?, follower = ?, error = NULL, result = ?
WHERE num = ?;

-- name: complete_all
-- Completes jobs with one result. None of them has a flag of END_HAS_EFFECTS (columns.py).
-- Params: now (µs), result, numbers (`num`) of jobs as a JSON array.
UPDATE backstay_job SET state = 4, finished = ?1, alarm = ?1 + keep, error = NULL, result = ?2
WHERE num IN (SELECT value FROM json_each(?3));

-- name: end_job
-- Ends a job without success.
-- Params: state (failed, cancelled or skipped), now (µs), alarm (µs, when its row may be deleted; 0: with its run),
-- error (a msgpack Failure or NULL), num of the job.
UPDATE backstay_job SET state = ?, finished = ?, alarm = ?, error = ? WHERE num = ?;

-- name: retry
-- Prepares a job for another attempt.
-- Params: state (pending or scheduled), alarm (the due time if scheduled, otherwise 0), rank (order in its lane), due
-- time (µs), number of attempts so far, number of snoozes so far, error (a msgpack Failure or NULL), num of the job.
UPDATE backstay_job SET state = ?, alarm = ?, rank = ?, due = ?, attempt = ?, snoozes = ?, error = ? WHERE num = ?;

-- name: free_unique
-- Frees a unique key if this job holds it.
-- Params: space (the namespace's number), unique key, id of the job.
DELETE FROM backstay_job_unique WHERE space = ? AND key = ? AND job = ?;

-- name: next_parked_lane
-- A parked job (state 8) is pending, but a claim skipped it because its concurrency key was at its limit.
-- Params: space (the namespace's number), concurrency key, number of the preceding lane (-1: start with the first
-- lane).
-- Returns: the number of the next lane that has a parked job of the key; NULL if there is none.
SELECT min(lane) FROM backstay_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 8 AND lane > ?;

-- name: first_parked
-- Params: space (the namespace's number), concurrency key, number of a lane.
-- Returns: num (row number) and kind of the parked job with this key and lane that has the smallest rank.
SELECT num, kind FROM backstay_job WHERE ckey IS NOT NULL AND space = ? AND ckey = ? AND state = 8 AND lane = ?
ORDER BY rank, id LIMIT 1;

-- name: unpark
-- Makes a parked job claimable again: its state becomes 2 (pending).
-- Params: num (row number) of the job.
UPDATE backstay_job SET state = 2 WHERE num = ?;

-- name: dependents
-- Params: chain ids as a JSON array, space (the namespace's number).
-- Returns: num, run, flags of each job that waits for one of these chains.
SELECT DISTINCT w.num, j.run, j.flags
FROM json_each(?) c CROSS JOIN backstay_job_wait w ON w.space = ? AND w.chain = c.value AND w.outcome = 0
CROSS JOIN backstay_job j ON j.num = w.num ORDER BY w.num;

-- name: resolve_waits
-- Stores how chains ended, for every job that waits for one of them. All these chains have one outcome.
-- Params: outcome (OUTCOME_* in columns.py), chain ids as a JSON array, space (the namespace's number).
UPDATE backstay_job_wait SET outcome = ?1, result = NULL
WHERE space = ?3 AND chain IN (SELECT value FROM json_each(?2)) AND outcome = 0;

-- name: resolve_wait_with_result
-- Stores how a chain ended and its result, for every job that waits for it.
-- Params: outcome (OUTCOME_* in columns.py), result, space (the namespace's number), chain id.
UPDATE backstay_job_wait SET outcome = ?, result = ? WHERE space = ? AND chain = ? AND outcome = 0;

-- name: blocked
-- Params: numbers (`num`) of jobs as a JSON array.
-- Returns: for each of these jobs that is blocked: 1 if a blocker of the job has not ended, else 0; then the columns of
-- JobRecord (columns.py).
SELECT EXISTS (SELECT 1 FROM backstay_job_wait w INDEXED BY backstay_job_wait_open
        WHERE w.num = j.num AND w.outcome = 0),
    j.num, j.id, j.kind, j.lane, j.state, j.due, j.priority, j.attempt, j.retries, j.snoozes, j.flags, j.fence,
    j.worker, j.keep, j.keep_failed, j.chain, j.run, j.ckey, j.uniq, j.error
FROM json_each(?) n CROSS JOIN backstay_job j ON j.num = n.value WHERE j.state = 1;

-- name: has_open_blocker
-- Params: num (row number) of the job.
-- Returns: a row if the job has a blocker that has not ended.
SELECT 1 FROM backstay_job_wait INDEXED BY backstay_job_wait_open WHERE num = ? AND outcome = 0 LIMIT 1;

-- name: has_bad_blocker
-- Params: num (row number) of the job.
-- Returns: a row if a blocker of the job ended without success (OUTCOME_BAD or OUTCOME_FAILED in columns.py).
SELECT 1 FROM backstay_job_wait WHERE num = ? AND outcome IN (2, 4) LIMIT 1;

-- name: has_failed_blocker
-- Params: num (row number) of the job.
-- Returns: a row if a blocker of the job failed, or was skipped because of a failure.
SELECT 1 FROM backstay_job_wait INDEXED BY backstay_job_wait_failed WHERE num = ? AND outcome = 4 LIMIT 1;

-- name: mark_upstream_failed
-- Sets the flag UPSTREAM_FAILED (4096) of a job: it is skipped because a job that it depends on failed.
-- Params: num (row number) of the job.
UPDATE backstay_job SET flags = flags | 4096 WHERE num = ?;

-- name: unblock
-- Releases those of the given jobs that are blocked although all their blockers have ended. A released job becomes
-- pending, or scheduled if it is not due yet.
-- Params: now (µs), numbers (`num`) of jobs as a JSON array.
-- Returns: num, id, kind, run, attempt, state of each released job.
UPDATE backstay_job SET state = iif(due > ?1, 0, 2), alarm = iif(due > ?1, due, 0)
WHERE num IN (SELECT value FROM json_each(?2)) AND state = 1
    AND NOT EXISTS (SELECT 1 FROM backstay_job_wait w INDEXED BY backstay_job_wait_open
        WHERE w.num = backstay_job.num AND w.outcome = 0)
RETURNING num, id, kind, run, attempt, state;
