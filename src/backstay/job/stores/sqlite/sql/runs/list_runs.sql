-- Purpose: read one run, or list runs in pages, newest first.

-- name: get
-- Params: space, id.
-- Returns: a run with its document.
SELECT r.id, r.workflow, r.version, r.status, r.created, r.started, r.finished, r.deadline, r.cancel, r.reason,
    r.events, r.scheduled, r.blocked, r.pending, r.running, r.completed, r.failed, r.cancelled, r.skipped, d.doc
FROM backstay_run r CROSS JOIN backstay_run_doc d ON d.num = r.num WHERE r.space = ? AND r.id = ?;

-- name: get_bare
-- Params: space, id.
-- Returns: as `get`, with an empty document.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND id = ?;

-- name: all
-- Params: space, before, limit.
-- Returns: as `get`, with an empty document.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: of_workflow
-- Params: space, workflow, before, limit.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND workflow = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: in_status
-- Params: space, status, before, limit.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND status = ? AND id < ? ORDER BY id DESC LIMIT ?;

-- name: of_workflow_in_status
-- Params: space, workflow, status, before, limit.
SELECT id, workflow, version, status, created, started, finished, deadline, cancel, reason, events, scheduled, blocked,
    pending, running, completed, failed, cancelled, skipped, x''
FROM backstay_run WHERE space = ? AND workflow = ? AND status = ? AND id < ? ORDER BY id DESC LIMIT ?;
