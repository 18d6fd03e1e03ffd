-- Purpose: mark a job so that its end, or the end of its chain, is announced.

-- name: last_of_chain
-- Finds the last job of a chain. The chain is that of the job with the given id. If that job is deleted, the given
-- id is taken as the id of the chain.
-- Params: space (the namespace's number), id of a job or chain.
-- Returns: the id of the chain's last job. No row: the chain consists of one job, or does not exist.
SELECT last FROM backstay_job_chain WHERE space = ?1 AND id =
    coalesce((SELECT iif(chain = '', id, chain) FROM backstay_job WHERE space = ?1 AND id = ?2), ?2);

-- name: set_flag
-- Sets a flag of a job.
-- Params: flag (a bit), num of the job.
UPDATE backstay_job SET flags = flags | ? WHERE num = ?;
