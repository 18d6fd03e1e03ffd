-- Purpose: the registry of workers.

-- name: heartbeat
-- Registers a worker, or stores the heartbeat of a registered worker, which keeps its time of registration.
-- Params: space (the namespace's number), id of the worker, time of registration (µs), time of the heartbeat (µs), the
-- worker's
-- description of itself (a WorkerRecord as msgpack).
INSERT INTO backstay_job_worker (space, id, registered, beat, doc) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET beat = excluded.beat, doc = excluded.doc;

-- name: unregister
-- Params: space (the namespace's number), id of the worker.
DELETE FROM backstay_job_worker WHERE space = ? AND id = ?;

-- name: workers
-- Params: space (the namespace's number), time (µs): workers whose last heartbeat is older are not returned.
-- Returns: for each worker: time of registration (µs), time of the last heartbeat (µs), the worker's description of
-- itself (a WorkerRecord as msgpack).
SELECT registered, beat, doc FROM backstay_job_worker WHERE space = ? AND beat >= ? ORDER BY id;
