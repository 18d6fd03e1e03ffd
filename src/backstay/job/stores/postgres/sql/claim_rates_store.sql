-- Purpose: rates have been used.
-- Parameters: space; arrays buckets (sorted), ats.
INSERT INTO backstay_job_rate (space, bucket, "at")
SELECT %(space)s, n.bucket, n.at FROM unnest(%(buckets)b, %(ats)b) AS n (bucket, at) ORDER BY n.bucket
ON CONFLICT (space, bucket) DO UPDATE SET "at" = greatest(backstay_job_rate."at", excluded."at")
