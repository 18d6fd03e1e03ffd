-- Purpose: what the jobs of a run came to, newest first.
-- Parameters: space, run, before ('': from the newest on), limit.
-- Returns: id, type, state, chain, followed_by, result.
SELECT * FROM (
    (SELECT id, type, CASE state WHEN 'parked' THEN 'pending' ELSE state END AS state, chain, '' AS followed_by,
        NULL::bytea AS result
    FROM backstay_job
    WHERE space = %(space)s AND run = %(run)s AND run <> '' AND (%(before)s = '' OR id < %(before)s)
    ORDER BY id DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT id, type, state, chain, followed_by, result
    FROM backstay_job_done
    WHERE space = %(space)s AND run = %(run)s AND run <> '' AND (%(before)s = '' OR id < %(before)s)
    ORDER BY id DESC LIMIT %(limit)s)
) job
ORDER BY id DESC LIMIT %(limit)s
