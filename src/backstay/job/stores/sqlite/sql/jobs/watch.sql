-- Purpose: mark a job whose end, or whose chain's end, is to be announced.

-- name: chain
-- Params: space, id.
-- Returns: the last job of the chain that this job belongs to, or that started with this job if its record is deleted.
-- No row: the job is a chain of its own.
SELECT last FROM backstay_job_chain WHERE space = ?1 AND id =
    coalesce((SELECT iif(chain = '', id, chain) FROM backstay_job WHERE space = ?1 AND id = ?2), ?2);

-- name: watch
-- Params: flags, num.
UPDATE backstay_job SET flags = flags | ? WHERE num = ?;
