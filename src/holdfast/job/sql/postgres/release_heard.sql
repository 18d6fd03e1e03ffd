-- Purpose: chains have ended well: those who wait for them, and are held (after_reach.sql), hear of it as in after_end.sql;
-- those who wait for nobody any more start, or wait until they are due. Left to whoever asks: those who start because of
-- a failure.
-- Parameters: space, now; arrays chains, results.
-- Returns: id, type, state, attempt, flags, run, whether one before it has failed. What is blocked was left alone, and
-- waits for nobody. For claim.sql and run_hold_more.sql it remembers that there are such, or the runs of the others.
WITH
-- include: _clock.sql
, told AS MATERIALIZED (
    SELECT a.tid, a.job, a.own, e.result FROM unnest(%(chains)b, %(results)b) AS e (chain, result) CROSS JOIN LATERAL (
        SELECT ctid AS tid, job, own FROM holdfast_job_after
        WHERE space = %(space)s AND chain = e.chain AND NOT ended OFFSET 0) a
), gone AS (
    DELETE FROM holdfast_job_after USING told WHERE holdfast_job_after.ctid = told.tid AND told.own
), kept AS (
    UPDATE holdfast_job_after a SET ended = true, completed = true, result = told.result
    FROM told WHERE a.ctid = told.tid AND NOT told.own
), free AS MATERIALIZED (
    SELECT job.* FROM (SELECT told.job AS id, count(*) AS n FROM told GROUP BY told.job) heard CROSS JOIN LATERAL (
        SELECT ctid AS tid, id, condition, type, attempt, flags, run
        FROM holdfast_job WHERE space = %(space)s AND id = heard.id AND state = 'blocked' OFFSET 0) job
    -- One more than those that have just ended: what this statement writes, it does not see.
    WHERE NOT EXISTS (
        SELECT FROM holdfast_job_after WHERE space = %(space)s AND job = heard.id AND NOT ended OFFSET heard.n)
    ORDER BY job.id
), moved AS (
    UPDATE holdfast_job job SET state = CASE WHEN due > now THEN 'scheduled' ELSE 'pending' END
    FROM free, clock WHERE job.ctid = free.tid AND free.condition <> 'any_failure'
    RETURNING job.id, job.type, job.state, lane, queue, labels, bucket, key, job.attempt, job.flags, job.run
),
-- include: _lanes.sql
, known AS MATERIALIZED (
    SELECT set_config('holdfast.released', CASE WHEN EXISTS (SELECT FROM free WHERE condition = 'any_failure') THEN '{-}'
        ELSE coalesce(array_agg(DISTINCT run) FILTER (WHERE flags & 128 <> 0), '{}')::text END, true) AS runs
    FROM moved
)
SELECT id, type, state, attempt, flags, run, false FROM known, moved
UNION ALL
SELECT id, type, 'blocked', attempt, flags, run, EXISTS (
    SELECT FROM holdfast_job_after WHERE space = %(space)s AND job = free.id AND blame)
FROM known, free WHERE condition = 'any_failure'
