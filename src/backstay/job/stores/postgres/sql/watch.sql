-- Purpose: from now on the end of a job, or of its chain, is announced. The commit does not wait for the disk: claims skip
-- the row until then, and what a crash takes away was a hint.
-- Parameters: space, id, flag.
-- Returns: the id if it has not ended.
WITH lazy AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
UPDATE backstay_job SET flags = flags | %(flag)s FROM lazy WHERE space = %(space)s AND id = %(id)s RETURNING id
