-- Purpose: chains have ended well (finish_runs.sql): those who wait for them, and are held (release_hold.sql), hear of it
-- as in after_end.sql; those who wait for nobody any more start, or wait until they are due. Those who start because of
-- a failure are left alone: claim.sql then hands out nothing, and run_move.sql undoes all of it.
-- Parameters: space, now.
-- Returns: id, type, state of each that was released. What moved is told in a setting (`_moved.sql`).
WITH
-- include: _clock.sql
, told AS MATERIALIZED (
    SELECT a.tid, a.job, a.own, e.id AS last
    FROM unnest(nullif(current_setting('backstay.over', true), '')::text[],
        nullif(current_setting('backstay.over_with', true), '')::text[]) AS e (chain, id)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid, job, own FROM backstay_job_after
        WHERE space = %(space)s AND chain BETWEEN e.chain AND e.chain AND NOT ended ORDER BY chain, job OFFSET 0) a
), gone AS (
    DELETE FROM backstay_job_after USING told WHERE backstay_job_after.ctid = told.tid AND told.own
), kept AS (
    UPDATE backstay_job_after a SET ended = true, completed = true, result = (
        SELECT result FROM backstay_job_done WHERE space = %(space)s AND id = told.last)
    FROM told WHERE a.ctid = told.tid AND NOT told.own
), free AS MATERIALIZED (
    SELECT job.* FROM (SELECT told.job AS id, count(*) AS n FROM told GROUP BY told.job) heard CROSS JOIN LATERAL (
        SELECT ctid AS tid, id, condition, type, attempt, flags, run
        FROM backstay_job WHERE space = %(space)s AND id = heard.id AND state = 'blocked' OFFSET 0) job
    -- One more than those that have just ended: what this statement writes, it does not see. Here and above, in an order
    -- that only one index has: to a planner that has met the table empty all are the same, and by the wrong one each
    -- would be looked for among all that anybody waits for.
    WHERE NOT EXISTS (
        SELECT FROM backstay_job_after WHERE space = %(space)s AND job = heard.id AND ended < true
        ORDER BY ended DESC, chain DESC OFFSET heard.n)
    ORDER BY job.id
), moved AS (
    UPDATE backstay_job job SET state = CASE WHEN due > now THEN 'scheduled' ELSE 'pending' END
    FROM free, clock WHERE job.ctid = free.tid AND free.condition <> 'any_failure'
    RETURNING job.id, job.type, job.state, lane, queue, labels, bucket, key, job.attempt, job.flags, job.run
),
-- include: _lanes.sql
, moves AS (
    SELECT run, CASE state WHEN 'pending' THEN 'ready' ELSE state END AS kind, '' AS worker, id, attempt, id AS nth
    FROM moved WHERE flags & 128 <> 0
), known AS MATERIALIZED (
    SELECT set_config('backstay.released', CASE WHEN EXISTS (SELECT FROM free WHERE condition = 'any_failure') THEN '{-}'
        ELSE (
-- include: _moved.sql
        ) END, true)
)
SELECT id, type, state FROM known LEFT JOIN moved ON true
