-- Purpose: jobs that were skipped, and waited for one of these chains, which did not complete.
-- Parameters: space; array chains.
-- Returns: id, chain, condition, and the chains that did not succeed among those it waited for.
SELECT a.job, done.chain, done.condition, coalesce((
    SELECT array_agg(other.chain) FROM backstay_job_after other
    WHERE other.space = %(space)s AND other.job = a.job AND other.ended AND other.spoilt), '{}')
FROM (
    SELECT DISTINCT found.job FROM unnest(%(chains)b) AS n (chain) CROSS JOIN LATERAL (
        SELECT job FROM backstay_job_after
        WHERE space = %(space)s AND chain = n.chain AND ended AND NOT completed OFFSET 0) found) a
CROSS JOIN LATERAL (
    SELECT chain, condition, state FROM backstay_job_done WHERE space = %(space)s AND id = a.job OFFSET 0) done
WHERE done.state = 'skipped'
