-- Purpose: more of a job's log, for whoever has its lease.
-- Parameters: space, job, fence (0: whoever asks may); arrays seqs, ats, streams, datas.
-- Returns: whether the lease is current.
WITH lease AS MATERIALIZED (
    SELECT FROM backstay_job WHERE space = %(space)s AND id = %(job)s AND fence = %(fence)s AND fence > 0
    FOR SHARE
), may AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM lease) OR (%(fence)s = 0 AND (
        EXISTS (SELECT FROM backstay_job WHERE space = %(space)s AND id = %(job)s)
        OR EXISTS (SELECT FROM backstay_job_done WHERE space = %(space)s AND id = %(job)s))) AS ok
), stored AS (
    INSERT INTO backstay_job_log (space, job, seq, "at", stream, data)
    SELECT %(space)s, %(job)s, n.seq, n.at, n.stream, n.data
    FROM unnest(%(seqs)b, %(ats)b, %(streams)b, %(datas)b) AS n (seq, at, stream, data), may WHERE may.ok
    ON CONFLICT (space, job, seq) DO NOTHING
)
SELECT ok FROM may
