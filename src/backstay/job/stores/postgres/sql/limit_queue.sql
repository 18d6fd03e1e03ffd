-- Purpose: how many jobs of a queue may start in a time.
-- Parameters: space, queue, interval, burst (0: any number), bucket.
INSERT INTO backstay_job_queue (space, name, rate_interval, rate_burst, bucket)
VALUES (%(space)s, %(queue)s, %(interval)s, %(burst)s, %(bucket)s)
ON CONFLICT (space, name) DO UPDATE
SET rate_interval = excluded.rate_interval, rate_burst = excluded.rate_burst, bucket = excluded.bucket
