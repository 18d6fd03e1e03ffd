-- Purpose: the registry of workers.

-- name: heartbeat
-- Params: space, id, registered, beat, doc.
INSERT INTO backstay_job_worker (space, id, registered, beat, doc) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET beat = excluded.beat, doc = excluded.doc;

-- name: unregister
-- Params: space, id.
DELETE FROM backstay_job_worker WHERE space = ? AND id = ?;

-- name: workers
-- Params: space, oldest heartbeat to report.
-- Returns: registered, beat, doc.
SELECT registered, beat, doc FROM backstay_job_worker WHERE space = ? AND beat >= ? ORDER BY id;
