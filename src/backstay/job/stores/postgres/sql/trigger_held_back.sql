-- Purpose: whether a job of a run that has ended would be skipped again at once: something that it waited for did not
-- succeed (any_failure: nothing failed), and nothing of that has begun anew. One that failed had its turn, and may have it
-- again. Have those chains held that have not ended.
-- Parameters: space, id.
-- Returns: whether; no row, if it is in no run.
SELECT CASE
    WHEN done.state = 'failed' THEN false
    WHEN done.condition = 'all_success' THEN after.spoilt
    WHEN done.condition = 'any_failure' THEN NOT after.open AND NOT after.blame
    ELSE false END
FROM (
    SELECT state, condition FROM backstay_job_done
    WHERE space = %(space)s AND id = %(id)s AND run <> '' AND flags & 128 <> 0 OFFSET 0) done
CROSS JOIN LATERAL (
    SELECT coalesce(bool_or(NOT a.ended OR live.there), false) AS open,
        coalesce(bool_or(a.ended AND a.spoilt AND NOT live.there), false) AS spoilt,
        coalesce(bool_or(a.ended AND a.blame AND NOT live.there), false) AS blame
    FROM backstay_job_after a CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM backstay_job WHERE space = %(space)s AND id = a.chain AND chain = id)
            OR EXISTS (SELECT FROM backstay_job WHERE space = %(space)s AND chain = a.chain AND chain <> id) AS there
        ) live
    WHERE a.space = %(space)s AND a.job = %(id)s) after
