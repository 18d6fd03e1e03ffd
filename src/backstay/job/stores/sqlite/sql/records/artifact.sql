-- Purpose: artifacts of jobs, stored in parts.

-- name: uploads
-- Params: job, name.
-- Returns: num, digest, number of parts of each unfinished upload with this name.
SELECT num, digest, parts FROM backstay_artifact WHERE job = ? AND name = ? AND whole = 0;

-- name: visible
-- Params: job, name.
-- Returns: num, digest of the visible artifact with this name.
SELECT num, digest FROM backstay_artifact WHERE job = ? AND name = ? AND whole = 1;

-- name: begin
-- Params: job, name, digest.
-- Returns: num.
INSERT INTO backstay_artifact (job, name, digest, size, created, parts, whole) VALUES (?, ?, ?, 0, 0, 0, 0)
RETURNING num;

-- name: part
-- Params: artifact, part, data.
INSERT INTO backstay_artifact_part (artifact, part, data) VALUES (?, ?, ?);

-- name: count_part
-- Params: num.
UPDATE backstay_artifact SET parts = parts + 1 WHERE num = ?;

-- name: publish
-- Params: size, created, num. Makes the artifact visible.
UPDATE backstay_artifact SET size = ?, created = ?, whole = 1 WHERE num = ?;

-- name: list
-- Params: job.
-- Returns: name, size, digest, created.
SELECT name, size, digest, created FROM backstay_artifact WHERE job = ? AND whole = 1 ORDER BY name;

-- name: read
-- Params: job, name, part.
-- Returns: data.
SELECT p.data FROM backstay_artifact a CROSS JOIN backstay_artifact_part p ON p.artifact = a.num
WHERE a.job = ? AND a.name = ? AND a.whole = 1 AND p.part = ?;

-- name: drop_parts
-- Params: num.
DELETE FROM backstay_artifact_part WHERE artifact = ?;

-- name: drop
-- Params: num.
DELETE FROM backstay_artifact WHERE num = ?;
