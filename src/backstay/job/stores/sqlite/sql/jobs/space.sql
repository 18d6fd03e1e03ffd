-- Purpose: namespaces. The other tables refer to a namespace by its number, in the column `space`.

-- name: find
-- Params: name of the namespace.
-- Returns: number of the namespace, last fence given in it, number of its last run event.
SELECT num, fence, event FROM backstay_job_space WHERE name = ?;

-- name: add
-- Params: name of the namespace.
INSERT INTO backstay_job_space (name, fence) VALUES (?, 0);

-- name: set_fence
-- Params: last fence given in the namespace, number of the namespace.
UPDATE backstay_job_space SET fence = ? WHERE num = ?;
