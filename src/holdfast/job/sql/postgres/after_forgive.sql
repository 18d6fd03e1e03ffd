-- Purpose: a job is started all the same: what did not complete no longer matters to it.
-- Parameters: space, id.
-- Returns: how many chains it still waits for.
WITH forgiven AS (
    UPDATE holdfast_job_after SET completed = NULL WHERE space = %(space)s AND job = %(id)s AND ended AND NOT completed
)
SELECT count(*) FROM holdfast_job_after WHERE space = %(space)s AND job = %(id)s AND NOT ended
