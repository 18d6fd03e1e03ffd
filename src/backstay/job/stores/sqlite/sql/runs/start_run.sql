-- Purpose: insert a run; enqueue.sql inserts its jobs.

-- name: taken
-- Params: space, run.
-- Returns: a row if a job already has this run's id.
SELECT 1 FROM backstay_job WHERE run <> '' AND space = ? AND run = ? LIMIT 1;

-- name: run
-- Params: space, id, workflow, version, created, timeout, deadline, keep.
-- Returns: num.
INSERT INTO backstay_run (space, id, workflow, version, status, created, started, finished, timeout, deadline, keep,
    until, checked, cancel, reason, events, broken, scheduled, blocked, pending, running, completed, failed, cancelled,
    skipped)
VALUES (?1, ?2, ?3, ?4, 0, ?5, 0, 0, ?6, ?7, ?8, 0, ?5, 0, '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
RETURNING num;

-- name: doc
-- Params: num, doc.
INSERT INTO backstay_run_doc (num, doc) VALUES (?, ?);
