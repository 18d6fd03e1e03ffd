(EXISTS (
    SELECT FROM backstay_job
    WHERE space = %(space)s AND state = 'running' AND until <= (SELECT now FROM clock))
-- What due.sql left alone comes before what was too much for it.
OR coalesce((
    SELECT flags & 128 <> 0 FROM backstay_job
    WHERE space = %(space)s AND state = 'scheduled' AND due <= (SELECT now FROM clock)
    ORDER BY due, id LIMIT 1), false))
