-- Purpose: those that were skipped because these chains did not complete wait for them again. What failed or was
-- cancelled itself stays so, and hears anew what becomes of them: it may be tried again after them.
-- Parameters: space; array chains.
-- Returns: the jobs that were skipped for no other reason.
WITH behind AS MATERIALIZED (
    SELECT a.tid, a.job, done.state, done.condition FROM unnest(%(chains)b) AS n (chain) CROSS JOIN LATERAL (
        SELECT ctid AS tid, job FROM backstay_job_after
        WHERE space = %(space)s AND chain = n.chain AND ended AND NOT completed OFFSET 0) a
    CROSS JOIN LATERAL (
        SELECT state, condition FROM backstay_job_done WHERE space = %(space)s AND id = a.job OFFSET 0) done
    WHERE done.state IN ('failed', 'cancelled', 'skipped')
), waits AS (
    UPDATE backstay_job_after a SET ended = false, completed = false, spoilt = false, blame = false, result = NULL
    FROM behind WHERE a.ctid = behind.tid
)
SELECT skipped.job FROM (SELECT DISTINCT job, condition FROM behind WHERE state = 'skipped') skipped
WHERE skipped.condition <> 'all_success' OR NOT EXISTS (
    SELECT FROM backstay_job_after other WHERE other.space = %(space)s AND other.job = skipped.job AND other.ended
        AND other.spoilt AND other.chain <> ALL(%(chains)b))
