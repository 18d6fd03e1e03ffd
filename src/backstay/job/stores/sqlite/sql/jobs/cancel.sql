-- Purpose: end a job by hand.

-- name: want
-- Params: error, num: it runs, its worker is to hear of it.
UPDATE backstay_job SET flags = flags | 16, error = ? WHERE num = ?;
