-- Purpose: namespaces, which are numbers in all other tables.

-- name: find
-- Params: name.
-- Returns: num, the last fence given out, the number of the last event.
SELECT num, fence, event FROM backstay_job_space WHERE name = ?;

-- name: add
-- Params: name.
INSERT INTO backstay_job_space (name, fence) VALUES (?, 0);

-- name: fence
-- Params: the last fence given out, num.
UPDATE backstay_job_space SET fence = ? WHERE num = ?;
