-- Purpose: read one run, or list runs in pages, newest first.

-- name: get
-- Params: space (the namespace's number), id of the run.
-- Returns: the columns of the run, then its document (inputs, job names, trigger).
SELECT r.id, r.workflow, r.version, r.status, r.created, r.started, r.finished, r.deadline, r.cancel, r.reason,
    r.events, r.scheduled, r.blocked, r.pending, r.running, r.completed, r.failed, r.cancelled, r.skipped, d.doc
FROM backstay_run r CROSS JOIN backstay_run_doc d ON d.num = r.num WHERE r.space = ? AND r.id = ?;

-- name: get_bare
-- Reads a run without its document.
-- Params: space (the namespace's number), id of the run.
-- Returns: the columns of `get`, with an empty document.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND id = ?;

-- name: all
-- Lists all runs, newest first.
-- Params: space (the namespace's number), before (a run id: only older runs are returned), largest number of runs to
-- return.
-- Returns: for each run: the columns of `get`, with an empty document.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: of_workflow
-- Lists the runs of a workflow, newest first.
-- Params: space (the namespace's number), name of the workflow, before (a run id: only older runs are returned),
-- largest number of runs to return.
-- Returns: for each run: the columns of `get`, with an empty document.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND workflow = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: in_status
-- Lists the runs with a status, newest first.
-- Params: space (the namespace's number), number of the status (STATUSES in run.py), before (a run id: only older runs
-- are returned), largest number of runs to return.
-- Returns: for each run: the columns of `get`, with an empty document.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND status = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: of_workflow_in_status
-- Lists the runs of a workflow with a status, newest first.
-- Params: space (the namespace's number), name of the workflow, number of the status (STATUSES in run.py), before (a
-- run id: only older runs are returned), largest number of runs to return.
-- Returns: for each run: the columns of `get`, with an empty document.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND workflow = ? AND status = ? AND id < ? ORDER BY id DESC LIMIT ?;
