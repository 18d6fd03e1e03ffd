-- Purpose: request the cancellation of a running job.

-- name: request
-- Requests the cancellation of a running job: sets its flag CANCEL_REQUESTED (16), which the reply to the worker's next
-- lease renewal reports.
-- Params: reason of the cancellation (a msgpack Failure), num (row number) of the job.
UPDATE backstay_job SET flags = flags | 16, error = ? WHERE num = ?;
