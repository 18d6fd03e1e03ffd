    SELECT count(*) FILTER (WHERE state = 'scheduled')::integer AS scheduled,
        count(*) FILTER (WHERE state = 'blocked')::integer AS blocked,
        count(*) FILTER (WHERE state IN ('pending', 'parked'))::integer AS pending,
        count(*) FILTER (WHERE state = 'running')::integer AS running,
        count(*) FILTER (WHERE state = 'completed')::integer AS completed,
        count(*) FILTER (WHERE state = 'failed')::integer AS failed,
        count(*) FILTER (WHERE state = 'cancelled')::integer AS cancelled,
        count(*) FILTER (WHERE state = 'skipped')::integer AS skipped,
        count(*) FILTER (WHERE state = 'failed' AND flags & 256 = 0)::integer AS hard
    FROM (
        SELECT state, flags FROM backstay_job WHERE space = %(space)s AND backstay_job.run = run.id AND backstay_job.run <> ''
        UNION ALL
        SELECT state, flags FROM backstay_job_done
        WHERE space = %(space)s AND backstay_job_done.run = run.id AND backstay_job_done.run <> '' AND followed_by = '') j
    WHERE flags & 128 <> 0
