-- Purpose: cron entries: when each last ticked.

-- name: last
-- Params: space, name.
-- Returns: when it last ticked.
SELECT at FROM backstay_job_cron WHERE space = ? AND name = ?;

-- name: tick
-- Params: space, name, at.
INSERT OR REPLACE INTO backstay_job_cron (space, name, at) VALUES (?, ?, ?);
