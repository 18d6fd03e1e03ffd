-- Purpose: every queue and what is in it. Counts all jobs: for people, not for programs.
-- Parameters: space.
-- Returns: name, paused, rate_interval, rate_burst, state, count, the earliest due time among them, the rate's
-- bucket; one row for each state in a queue.
SELECT coalesce(jobs.queue, q.name), coalesce(q.paused, false), coalesce(q.rate_interval, 0),
    coalesce(q.rate_burst, 0), coalesce(jobs.state, ''), coalesce(jobs.many, 0), coalesce(jobs.due, 0),
    coalesce(q.bucket, '')
FROM (
    SELECT queue, CASE state WHEN 'parked' THEN 'pending' ELSE state END AS state, count(*) AS many, min(due) AS due
    FROM backstay_job WHERE space = %(space)s GROUP BY 1, 2
    UNION ALL
    SELECT queue, state, count(*), 0 FROM backstay_job_done WHERE space = %(space)s GROUP BY 1, 2
) jobs
FULL JOIN (SELECT * FROM backstay_job_queue WHERE space = %(space)s) q ON q.name = jobs.queue
ORDER BY 1, 5
