-- Purpose: what chains came to that have ended.
-- Parameters: space; array chains.
-- Returns: chain; of its last job the state, result, flags, whether it was skipped because of a failure, and the id of
-- the job that follows it ('': it is the last).
SELECT n.chain, done.state, done.result, done.flags, done.blamed, done.followed_by
FROM unnest(%(chains)b) AS n (chain)
CROSS JOIN LATERAL (
    SELECT state, result, flags, blamed, followed_by, id FROM backstay_job_done
    WHERE space = %(space)s AND id = n.chain AND chain = id
    UNION ALL
    SELECT state, result, flags, blamed, followed_by, id FROM backstay_job_done
    WHERE space = %(space)s AND chain = n.chain AND chain <> id
    ORDER BY followed_by LIMIT 1) done
