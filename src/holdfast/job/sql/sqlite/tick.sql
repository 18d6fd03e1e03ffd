-- Purpose: cron entries: when each last ticked.

-- name: last
-- Params: space, name.
-- Returns: when it last ticked.
SELECT at FROM holdfast_job_cron WHERE space = ? AND name = ?;

-- name: tick
-- Params: space, name, at.
INSERT OR REPLACE INTO holdfast_job_cron (space, name, at) VALUES (?, ?, ?);
