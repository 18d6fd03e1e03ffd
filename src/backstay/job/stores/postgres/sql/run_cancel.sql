-- Purpose: running jobs are to end.
-- Parameters: space; arrays ids, reasons.
UPDATE backstay_job SET cancel = found.reason
FROM (
    SELECT job.tid, n.reason FROM unnest(%(ids)b, %(reasons)b) AS n (id, reason) CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM backstay_job WHERE space = %(space)s AND id = n.id OFFSET 0) job) found
WHERE backstay_job.ctid = found.tid
