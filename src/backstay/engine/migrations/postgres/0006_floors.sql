-- Purpose: where claims begin to look.
--
-- Below `floor` there is nothing in a lane, as far as was seen a moment ago: entries of what was handed out stay in the index
-- until the next vacuum, and each claim would step over all of them.
ALTER TABLE backstay_job_lane ADD COLUMN floor bigint NOT NULL DEFAULT -9223372036854775808;
