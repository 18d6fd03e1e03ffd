-- Purpose: versioned workflow definitions.

-- name: newest
-- Params: space (the namespace's number), name of the workflow.
-- Returns: of the newest version of the workflow's definition: version number, digest of its document, time of creation
-- (µs), document, row number.
SELECT version, digest, created, doc, num FROM backstay_definition WHERE newest = 1 AND space = ? AND workflow = ?;

-- name: version
-- Params: space (the namespace's number), name of the workflow, version number.
-- Returns: of this version of the workflow's definition: version number, digest of its document, time of creation (µs),
-- document.
SELECT version, digest, created, doc FROM backstay_definition WHERE space = ? AND workflow = ? AND version = ?;

-- name: list
-- Lists workflows in the order of their names.
-- Params: space (the namespace's number), name of the last workflow already read, largest number of workflows to
-- return.
-- Returns: for the newest version of each workflow's definition: name of the workflow, version number, digest of its
-- document, time of creation (µs).
SELECT workflow, version, digest, created FROM backstay_definition
WHERE newest = 1 AND space = ? AND workflow > ? ORDER BY workflow LIMIT ?;

-- name: unset_newest
-- Marks a version as no longer the newest.
-- Params: row number of the version.
UPDATE backstay_definition SET newest = 0 WHERE num = ?;

-- name: put
-- Stores a new version of a workflow's definition and marks it as the newest.
-- Params: space (the namespace's number), name of the workflow, version number, digest of the document, now (µs),
-- document.
INSERT INTO backstay_definition (space, workflow, version, newest, digest, created, doc) VALUES (?, ?, ?, 1, ?, ?, ?);
