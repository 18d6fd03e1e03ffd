-- Purpose: remember which finishes of a step counted.
-- Parameters: space, worker, incarnation, lane, finished (places from 1).
UPDATE backstay_job_turn SET finished = finished || %(finished)s::integer[]
WHERE space = %(space)s AND worker = %(worker)s AND incarnation = %(incarnation)s AND lane = %(lane)s
