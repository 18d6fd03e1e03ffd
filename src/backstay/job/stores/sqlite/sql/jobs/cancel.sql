-- Purpose: request the cancellation of a running job.

-- name: request
-- Params: error, num. Sets CANCEL_WANTED (16); the worker sees it with its next renewal.
UPDATE backstay_job SET flags = flags | 16, error = ? WHERE num = ?;
