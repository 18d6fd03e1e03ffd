-- Purpose: delete jobs past their time.
-- Parameters: space, limit, now.
-- Returns: how many.
WITH
-- include: _clock.sql
, chosen AS MATERIALIZED (
    -- By time alone: a plan made while the table was empty must not read a namespace from end to end later on.
    SELECT ctid AS tid FROM backstay_job_done
    WHERE keep_until <= (SELECT now FROM clock) AND keep_until < 9223372036854775807 AND space || '' = %(space)s
    ORDER BY keep_until LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
-- include: _forget.sql
