-- Purpose: the last tick of each cron entry.

-- name: last
-- Params: space, name.
-- Returns: the time of its last tick.
SELECT at FROM backstay_job_cron WHERE space = ? AND name = ?;

-- name: tick
-- Params: space, name, at.
INSERT OR REPLACE INTO backstay_job_cron (space, name, at) VALUES (?, ?, ?);
