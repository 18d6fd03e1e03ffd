gone AS (
    DELETE FROM backstay_job_done USING chosen WHERE backstay_job_done.ctid = chosen.tid
    RETURNING backstay_job_done.space, backstay_job_done.id
), logs AS (
    DELETE FROM backstay_job_log USING (
        SELECT found.tid FROM gone CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM backstay_job_log WHERE space = %(space)s AND job = gone.id OFFSET 0) found) n
    WHERE backstay_job_log.ctid = n.tid
), outputs AS (
    DELETE FROM backstay_job_output USING (
        SELECT found.tid FROM gone CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM backstay_job_output WHERE space = %(space)s AND job = gone.id OFFSET 0) found) n
    WHERE backstay_job_output.ctid = n.tid
), waits AS (
    DELETE FROM backstay_job_after USING (
        SELECT found.tid FROM gone CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM backstay_job_after WHERE space = %(space)s AND job = gone.id OFFSET 0) found) n
    WHERE backstay_job_after.ctid = n.tid
), files AS (
    DELETE FROM backstay_artifact USING (
        SELECT found.tid FROM gone CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM backstay_artifact WHERE space = %(space)s AND job = gone.id OFFSET 0) found) n
    WHERE backstay_artifact.ctid = n.tid
    RETURNING backstay_artifact.job, backstay_artifact.name, backstay_artifact.digest
), parts AS (
    DELETE FROM backstay_artifact_part USING (
        SELECT found.tid FROM files CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM backstay_artifact_part
            WHERE space = %(space)s AND job = files.job AND name = files.name AND digest = files.digest OFFSET 0) found) n
    WHERE backstay_artifact_part.ctid = n.tid
)
SELECT count(*) FROM gone
