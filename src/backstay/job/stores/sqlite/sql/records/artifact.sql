-- Purpose: artifacts of jobs, stored in parts. `num` is the integer key of a row.

-- name: uploads
-- Params: num of the job, name of the artifact.
-- Returns: for each unfinished upload with this name: num of the artifact, digest of its content, number of stored
-- parts.
SELECT num, digest, parts FROM backstay_artifact WHERE job = ? AND name = ? AND complete = 0;

-- name: visible
-- Params: num of the job, name of the artifact.
-- Returns: num, digest of the artifact with this name whose upload is finished.
SELECT num, digest FROM backstay_artifact WHERE job = ? AND name = ? AND complete = 1;

-- name: begin
-- Begins an upload.
-- Params: num of the job, name of the artifact, digest of its content.
-- Returns: num of the artifact.
INSERT INTO backstay_artifact (job, name, digest, size, created, parts, complete) VALUES (?, ?, ?, 0, 0, 0, 0)
RETURNING num;

-- name: add_part
-- Stores one part of an upload.
-- Params: num of the artifact, number of the part (from 0), bytes of the part.
INSERT INTO backstay_artifact_part (artifact, part, data) VALUES (?, ?, ?);

-- name: count_part
-- Adds one to the number of stored parts.
-- Params: num of the artifact.
UPDATE backstay_artifact SET parts = parts + 1 WHERE num = ?;

-- name: publish
-- Makes an uploaded artifact visible.
-- Params: size of the artifact in bytes, now (µs), num of the artifact.
UPDATE backstay_artifact SET size = ?, created = ?, complete = 1 WHERE num = ?;

-- name: list
-- Params: num of the job.
-- Returns: name, size in bytes, digest, time of creation (µs) of each artifact of the job whose upload is finished.
SELECT name, size, digest, created FROM backstay_artifact WHERE job = ? AND complete = 1 ORDER BY name;

-- name: read
-- Params: num of the job, name of the artifact, number of the part (from 0).
-- Returns: the bytes of this part, if the artifact's upload is finished.
SELECT p.data FROM backstay_artifact a CROSS JOIN backstay_artifact_part p ON p.artifact = a.num
WHERE a.job = ? AND a.name = ? AND a.complete = 1 AND p.part = ?;

-- name: drop_parts
-- Deletes all parts of an artifact or upload.
-- Params: num of the artifact.
DELETE FROM backstay_artifact_part WHERE artifact = ?;

-- name: drop
-- Deletes the row of an artifact or upload.
-- Params: num of the artifact.
DELETE FROM backstay_artifact WHERE num = ?;
