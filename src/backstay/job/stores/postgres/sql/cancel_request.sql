-- Purpose: the cancellation of a running job is wanted.
-- Parameters: space, id, reason.
UPDATE backstay_job SET cancel = %(reason)s WHERE space = %(space)s AND id = %(id)s
