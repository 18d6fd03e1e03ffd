-- Purpose: those that were skipped because these chains did not complete wait for them again.
-- Parameters: space; array chains.
-- Returns: the jobs that were skipped for no other reason.
WITH skipped AS MATERIALIZED (
    SELECT a.tid, a.job FROM unnest(%(chains)b) AS n (chain) CROSS JOIN LATERAL (
        SELECT ctid AS tid, job FROM holdfast_job_after
        WHERE space = %(space)s AND chain = n.chain AND ended AND completed IS NOT TRUE OFFSET 0) a
    CROSS JOIN LATERAL (SELECT state FROM holdfast_job_done WHERE space = %(space)s AND id = a.job OFFSET 0) done
    WHERE done.state = 'skipped'
), waits AS (
    UPDATE holdfast_job_after a SET ended = false, completed = false, result = NULL FROM skipped
    WHERE a.ctid = skipped.tid
)
SELECT DISTINCT skipped.job FROM skipped
WHERE NOT EXISTS (
    SELECT FROM holdfast_job_after other WHERE other.space = %(space)s AND other.job = skipped.job AND other.ended
        AND other.completed IS NOT TRUE AND other.chain <> ALL(%(chains)b))
