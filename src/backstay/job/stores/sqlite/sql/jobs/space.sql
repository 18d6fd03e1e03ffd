-- Purpose: namespaces; all other tables refer to them by number.

-- name: find
-- Params: name.
-- Returns: num, last allocated fence, number of the last event.
SELECT num, fence, event FROM backstay_job_space WHERE name = ?;

-- name: add
-- Params: name.
INSERT INTO backstay_job_space (name, fence) VALUES (?, 0);

-- name: fence
-- Params: last allocated fence, num.
UPDATE backstay_job_space SET fence = ? WHERE num = ?;
