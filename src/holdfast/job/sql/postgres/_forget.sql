gone AS (
    DELETE FROM holdfast_job_done USING chosen WHERE holdfast_job_done.ctid = chosen.tid
    RETURNING holdfast_job_done.space, holdfast_job_done.id
), logs AS (
    DELETE FROM holdfast_job_log USING (
        SELECT found.tid FROM gone CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM holdfast_job_log WHERE space = %(space)s AND job = gone.id OFFSET 0) found) n
    WHERE holdfast_job_log.ctid = n.tid
), outputs AS (
    DELETE FROM holdfast_job_output USING (
        SELECT found.tid FROM gone CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM holdfast_job_output WHERE space = %(space)s AND job = gone.id OFFSET 0) found) n
    WHERE holdfast_job_output.ctid = n.tid
), waits AS (
    DELETE FROM holdfast_job_after USING (
        SELECT found.tid FROM gone CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM holdfast_job_after WHERE space = %(space)s AND job = gone.id OFFSET 0) found) n
    WHERE holdfast_job_after.ctid = n.tid
), files AS (
    DELETE FROM holdfast_artifact USING (
        SELECT found.tid FROM gone CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM holdfast_artifact WHERE space = %(space)s AND job = gone.id OFFSET 0) found) n
    WHERE holdfast_artifact.ctid = n.tid
    RETURNING holdfast_artifact.job, holdfast_artifact.name, holdfast_artifact.digest
), parts AS (
    DELETE FROM holdfast_artifact_part USING (
        SELECT found.tid FROM files CROSS JOIN LATERAL (
            SELECT ctid AS tid FROM holdfast_artifact_part
            WHERE space = %(space)s AND job = files.job AND name = files.name AND digest = files.digest OFFSET 0) found) n
    WHERE holdfast_artifact_part.ctid = n.tid
)
SELECT count(*) FROM gone
