-- Purpose: the last tick of each cron entry.

-- name: last_tick
-- Params: space (the namespace's number), name of the cron entry.
-- Returns: the time of the entry's last tick (µs).
SELECT at FROM backstay_job_cron WHERE space = ? AND name = ?;

-- name: tick
-- Stores the time of a cron entry's last tick.
-- Params: space (the namespace's number), name of the cron entry, time of the tick (µs).
INSERT OR REPLACE INTO backstay_job_cron (space, name, at) VALUES (?, ?, ?);
