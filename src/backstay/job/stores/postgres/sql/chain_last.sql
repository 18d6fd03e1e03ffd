-- Purpose: the job at the end of the chain that a job belongs to, or that began with a job whose record is gone.
-- Parameters: space, id.
-- Returns: its id.
WITH chain AS MATERIALIZED (
    SELECT coalesce(
        (SELECT chain FROM backstay_job WHERE space = %(space)s AND id = %(id)s),
        (SELECT chain FROM backstay_job_done WHERE space = %(space)s AND id = %(id)s), %(id)s) AS chain
), links AS (
    SELECT j.id, 0 AS place FROM backstay_job j WHERE j.space = %(space)s AND j.id = (SELECT chain FROM chain)
    UNION ALL
    SELECT j.id, 0 FROM backstay_job j
    WHERE j.space = %(space)s AND j.chain = (SELECT chain FROM chain) AND j.chain <> j.id
    UNION ALL
    SELECT d.id, 1 FROM backstay_job_done d
    WHERE d.space = %(space)s AND d.id = (SELECT chain FROM chain) AND d.followed_by = ''
    UNION ALL
    SELECT d.id, 1 FROM backstay_job_done d
    WHERE d.space = %(space)s AND d.chain = (SELECT chain FROM chain) AND d.chain <> d.id AND d.followed_by = ''
)
SELECT id FROM links ORDER BY place LIMIT 1
