-- Purpose: take back those that had ended before they were sent again. Only a statement after the one that stored them
-- can know: it sees what was committed while that one waited.
-- Parameters: space; array ids.
-- Returns: id and state of each.
WITH over AS MATERIALIZED (
    SELECT done.id, done.state FROM unnest(%(ids)b) AS n (id) CROSS JOIN LATERAL (
        SELECT id, state FROM backstay_job_done WHERE space = %(space)s AND id = n.id OFFSET 0) done
), gone AS (
    DELETE FROM backstay_job USING (
        SELECT job.tid FROM over CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = over.id OFFSET 0) job) n
    WHERE backstay_job.ctid = n.tid
)
SELECT id, state FROM over
