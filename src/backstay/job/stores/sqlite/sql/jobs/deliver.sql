-- Purpose: store how a chain ended for one job that waits for it (the store operation `deliver`).

-- name: resolve_wait
-- Stores how a blocker of a job ended. Changes nothing if an outcome is already stored (is not 0).
-- Params: outcome (OUTCOME_* in columns.py), result of the blocker, num of the job that waits, chain id of the blocker.
UPDATE backstay_job_wait SET outcome = ?, result = ? WHERE num = ? AND chain = ? AND outcome = 0;
