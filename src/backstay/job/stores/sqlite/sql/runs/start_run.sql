-- Purpose: insert a run; enqueue.sql inserts its jobs.

-- name: has_jobs
-- Params: space (the namespace's number), id of the run.
-- Returns: one row if a stored job already names this run, otherwise no row.
SELECT 1 FROM backstay_job WHERE run <> '' AND space = ? AND run = ? LIMIT 1;

-- name: run
-- Inserts a run with the status queued and without jobs.
-- Params: space (the namespace's number), id of the run, name of the workflow, version of its definition, now (µs),
-- timeout (µs),
-- deadline (µs; 0: none), keep (µs for which the run is stored after its end).
-- Returns: num of the run.
INSERT INTO backstay_run (space, id, workflow, version, status, created, started, finished, timeout, deadline, keep,
    keep_until, checked, cancel, reason, events, hard_failures, scheduled, blocked, pending, running, completed, failed,
    cancelled, skipped)
VALUES (?1, ?2, ?3, ?4, 0, ?5, 0, 0, ?6, ?7, ?8, 0, ?5, 0, '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
RETURNING num;

-- name: doc
-- Stores the document of a run: inputs, job names, the trigger.
-- Params: num of the run, document as bytes.
INSERT INTO backstay_run_doc (num, doc) VALUES (?, ?);
