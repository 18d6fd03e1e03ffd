-- Purpose: what happened to the jobs of a run, in order.

-- name: last
-- Params: space, run.
-- Returns: the number of a run's last event.
SELECT coalesce(max(seq), 0) FROM holdfast_job_event WHERE space = ? AND run = ?;

-- name: append
-- Params: space, run, seq, at, kind, job, doc.
INSERT INTO holdfast_job_event (space, run, seq, at, kind, job, doc) VALUES (?, ?, ?, ?, ?, ?, ?);
