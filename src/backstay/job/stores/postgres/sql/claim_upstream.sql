-- Purpose: what the chains came to that jobs waited for. Of their own runs: what they are now, unless a job heard otherwise.
-- Parameters: space; arrays ids (of jobs), chains (those of their own runs that others waited for), or NULL: what claim.sql
-- has just told in settings.
-- Returns: job ('': any that waited for it), chain, result (NULL: it did not complete).
SELECT a.job, a.chain, CASE WHEN a.completed THEN coalesce(a.result, '') END
FROM unnest(coalesce(%(ids)s::text[], nullif(current_setting('backstay.waited', true), '')::text[])) AS n (id) CROSS JOIN LATERAL (
    SELECT * FROM backstay_job_after WHERE space = %(space)s AND job = n.id OFFSET 0) a
UNION ALL
SELECT '', n.chain, CASE WHEN last.state = 'completed' THEN coalesce(last.result, '') END
FROM unnest(coalesce(%(chains)s::text[], nullif(current_setting('backstay.upstream', true), '')::text[])) AS n (chain) LEFT JOIN LATERAL (
    SELECT state, result FROM backstay_job_done WHERE space = %(space)s AND id = n.chain AND followed_by = ''
    UNION ALL
    SELECT state, result FROM backstay_job_done
    WHERE space = %(space)s AND chain = n.chain AND chain <> id AND followed_by = ''
    LIMIT 1) last ON true
