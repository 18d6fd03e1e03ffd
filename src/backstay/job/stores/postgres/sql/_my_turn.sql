EXISTS (
    SELECT FROM backstay_job_turn
    WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
        AND xmin = pg_current_xact_id()::xid)
