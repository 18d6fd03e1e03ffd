-- Purpose: versioned workflow definitions.

-- name: newest
-- Params: space, workflow.
-- Returns: version, digest, created, doc, num of its newest version.
SELECT version, digest, created, doc, num FROM backstay_definition WHERE newest = 1 AND space = ? AND workflow = ?;

-- name: version
-- Params: space, workflow, version.
-- Returns: version, digest, created, doc.
SELECT version, digest, created, doc FROM backstay_definition WHERE space = ? AND workflow = ? AND version = ?;

-- name: list
-- Params: space, after, limit.
-- Returns: workflow, version, digest, created of the newest version of each.
SELECT workflow, version, digest, created FROM backstay_definition
WHERE newest = 1 AND space = ? AND workflow > ? ORDER BY workflow LIMIT ?;

-- name: outdate
-- Params: num. A newer version replaces it as the newest.
UPDATE backstay_definition SET newest = 0 WHERE num = ?;

-- name: put
-- Params: space, workflow, version, digest, created, doc.
INSERT INTO backstay_definition (space, workflow, version, newest, digest, created, doc) VALUES (?, ?, ?, 1, ?, ?, ?);
