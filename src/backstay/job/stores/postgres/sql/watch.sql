-- Purpose: from now on the end of a job, or of its chain, is announced.
-- Parameters: space, id, flag.
-- Returns: the id if it has not ended.
UPDATE backstay_job SET flags = flags | %(flag)s WHERE space = %(space)s AND id = %(id)s RETURNING id
