-- Purpose: delete runs with all that belongs to them, if they are still past their time. Their jobs are held.
-- Parameters: space, now; array runs.
-- Returns: how many runs and jobs.
WITH
-- include: _clock.sql
, over AS MATERIALIZED (
    SELECT run.tid, run.id FROM unnest(%(runs)b) AS n (run) CROSS JOIN LATERAL (
        SELECT ctid AS tid, id FROM backstay_run
        WHERE space = %(space)s AND id = n.run AND keep_until <= (SELECT now FROM clock) OFFSET 0) run
), runs AS (
    DELETE FROM backstay_run USING over WHERE backstay_run.ctid = over.tid
), events AS (
    DELETE FROM backstay_run_event USING (
        SELECT found.tid FROM over CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM backstay_run_event WHERE space = %(space)s AND run = over.id OFFSET 0) found) n
    WHERE backstay_run_event.ctid = n.tid
), chosen AS MATERIALIZED (
    SELECT done.tid FROM over CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job_done
        WHERE space = %(space)s AND run = over.id AND run <> '' AND flags & 128 <> 0 OFFSET 0) done
),
-- include: _forget.sql
UNION ALL SELECT count(*) FROM over
