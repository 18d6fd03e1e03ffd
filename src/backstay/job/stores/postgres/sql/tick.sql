-- Purpose: a cron entry's turn, taken by the first who asks.
-- Parameters: space, name, at.
-- Returns: a row, if it is ours.
INSERT INTO backstay_job_tick AS tick (space, name, "at") VALUES (%(space)s, %(name)s, %(at)s)
ON CONFLICT (space, name) DO UPDATE SET "at" = excluded."at" WHERE tick."at" < excluded."at"
RETURNING "at"
