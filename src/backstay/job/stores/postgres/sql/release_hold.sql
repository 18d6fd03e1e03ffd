-- Purpose: hold those who wait for chains that have ended well (finish_runs.sql), in one order for all who do: see
-- after_reach.sql. Nobody is skipped because of a success but those who start because of a failure, and then finish_runs.sql
-- has left it alone.
-- Parameters: space.
WITH waiting AS MATERIALIZED (
    -- With a column that no index has: else the primary key would answer by itself, and seem cheaper than the one by chain.
    SELECT a.job, bool_or(a.doubts) FROM unnest(nullif(current_setting('backstay.over', true), '')::text[]) AS c (chain)
    CROSS JOIN LATERAL (
        SELECT job, doubts FROM backstay_job_after
        WHERE space = %(space)s AND chain BETWEEN c.chain AND c.chain AND NOT ended ORDER BY chain, job OFFSET 0) a
    GROUP BY a.job ORDER BY a.job
)
SELECT count(*) FROM waiting CROSS JOIN LATERAL (
    SELECT id FROM backstay_job WHERE space = %(space)s AND id = waiting.job FOR NO KEY UPDATE) job
