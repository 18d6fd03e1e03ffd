-- Purpose: a queue hands out nothing, or goes on.
-- Parameters: space, queue, paused.
INSERT INTO backstay_job_queue (space, name, paused) VALUES (%(space)s, %(queue)s, %(paused)s)
ON CONFLICT (space, name) DO UPDATE SET paused = excluded.paused
